/* mnist_ddp manual: the man page, from the tables of commands and settings. */
#include "app/common/commands.h"
#include "app/common/exit_codes.h"
#include "app/common/version.h"
#include "app/options/options_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text as roff takes it: no dash is broken at, no dot begins a request. */
static void print_text(const char *text)
{
    if (text[0] == '.' || text[0] == '\'')
        fputs("\\&", stdout);
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '\\')
            fputs("\\e", stdout);
        else if (*c == '-')
            fputs("\\-", stdout);
        else
            putchar(*c);
    }
}

static void print_line(const char *text)
{
    print_text(text);
    putchar('\n');
}

/* A paragraph that begins with a term. */
static void print_term(const char *bold, const char *italic)
{
    fputs(".TP\n\\fB", stdout);
    print_text(bold);
    fputs("\\fR", stdout);
    if (italic[0] != '\0') {
        fputs(italic[0] == '[' ? "\\fI" : " \\fI", stdout);
        print_text(italic);
        fputs("\\fR", stdout);
    }
    putchar('\n');
}

static void print_commands(const char *title, const command_row *rows, int n)
{
    printf(".SH %s\n", title);
    for (int i = 0; i < n; i++) {
        print_term(rows[i].name, "");
        print_line(rows[i].summary);
        if (rows[i].details != NULL) {
            puts(".RS\n.PP");
            print_line(rows[i].details);
            puts(".RE");
        }
    }
}

/* "train, eval": who takes the flag. */
static void print_takers(const option_row *row)
{
    const char *separator = "\n.br\nOf ";
    for (int i = 0; i < command_table_count; i++) {
        if ((row->commands & 1u << i) == 0)
            continue;
        fputs(separator, stdout);
        print_text(command_table[i].name);
        separator = ", ";
    }
    puts(".");
}

static void print_flags(void)
{
    char flag[OPTION_TEXT_BYTES], value[OPTION_TEXT_BYTES], text[OPTION_TEXT_BYTES];
    puts(".SH OPTIONS\nEvery flag may be spelled with dashes or underscores, and cut short while "
         "it is unique.\nIn brackets are defaults.");
    for (int group = 0; group < GROUP_COUNT; group++) {
        printf(".SS \"");
        print_text(option_group_titles[group]);
        puts("\"");
        for (size_t i = 0; i < options_table_count; i++) {
            const option_row *row = &options_table[i];
            if (row->group != (option_group)group)
                continue;
            print_term(option_text_flag(row, flag), option_text_value(row, value));
            print_text(option_text_meaning(&command_table[COMMAND_HELP], row, text));
            print_takers(row);
        }
    }
}

static void print_examples(const command_row *rows, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < COMMAND_EXAMPLES_MAX && rows[i].examples[k].line != NULL; k++) {
            print_term(rows[i].examples[k].line, "");
            print_line(rows[i].examples[k].text);
        }
}

static void print_codes(void)
{
    static const struct {
        int code;
        const char *text;
    } codes[] = {
        {0, "All is done."},
        {EXIT_CODE_USAGE, "Flags, environment or configuration make no sense."},
        {EXIT_CODE_DATA, "The data set cannot be read."},
        {EXIT_CODE_RENDEZVOUS, "The ranks did not find each other."},
        {EXIT_CODE_INTERNAL, "Memory, a device or a library failed."},
        {EXIT_CODE_PEER, "Another rank went away."},
        {EXIT_CODE_OUTPUT, "A checkpoint or a result cannot be written or read."},
        {EXIT_CODE_PREEMPTED, "It was asked to stop; a checkpoint continues exactly."},
        {EXIT_CODE_TIMEOUT, "The deadline of a collective passed."},
    };
    puts(".SH EXIT STATUS");
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        printf(".TP\n\\fB%d\\fR\n%s\n", codes[i].code, codes[i].text);
    puts("A launcher exits as the rank that failed first; a signal n is 128 + n.");
}

int manual_command(const options *opts)
{
    (void)opts;
    puts(".TH MNIST_DDP 1 \"\" \"mnist_ddp " MNIST_DDP_VERSION "\" \"User Commands\"\n"
         ".SH NAME\nmnist_ddp \\- PyTorch's distributed training of MNIST\n"
         ".SH SYNOPSIS\n\\fBmnist_ddp\\fR [\\fICOMMAND\\fR] [\\fIFLAGS\\fR]\n"
         ".SH DESCRIPTION\nTrains networks on MNIST with one process or with many ranks, as "
         "PyTorch's DistributedDataParallel does,\nand starts any program as ranks, as torchrun "
         "does.\nWithout a command it trains.");
    print_commands("COMMANDS", command_table, command_table_count);
    print_commands("BENCHMARKS", benchmark_table, benchmark_table_count);
    print_flags();
    puts(".SH ENVIRONMENT\n.TP\n\\fBMNIST_DDP_DATA\\fR\nThe folder with the files of MNIST.\n"
         ".TP\n\\fBMNIST_DDP_\\fR\\fINAME\\fR\nThe setting \\fINAME\\fR, as MNIST_DDP_BATCH_SIZE: "
         "after the command line, before the file of \\-\\-config.\n"
         ".TP\n\\fBRANK\\fR, \\fBWORLD_SIZE\\fR, \\fBMASTER_ADDR\\fR, \\fBMASTER_PORT\\fR\nAs "
         "torchrun sets them: the process is that rank.");
    puts(".SH EXAMPLES");
    print_examples(command_table, command_table_count);
    print_examples(benchmark_table, benchmark_table_count);
    print_codes();
    return EXIT_SUCCESS;
}
