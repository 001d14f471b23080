/* mnist_ddp completion: a script that completes command lines in bash, zsh or fish, from the tables
 * of commands and settings. */
#include "app/common/commands.h"
#include "app/common/exit_codes.h"
#include "app/options/options_table.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Words after a command's name; NULL: the store's actions. Those after bench and help are names of
 * the tables. */
static const struct {
    const char *command, *words;
} WORDS[] = {{"data", "fetch info verify show"},
             {"store", NULL},
             {"doctor", "train run"},
             {"completion", "bash zsh fish"}};
enum { N_WORDS = sizeof WORDS / sizeof WORDS[0] };

static const char *words_after(int i)
{
    return WORDS[i].words != NULL ? WORDS[i].words : store_command_actions();
}

/* Of what kind a value is. */
typedef enum value_kind {
    VALUE_NONE,
    VALUE_WORDS,
    VALUE_FOLDER,
    VALUE_FILE,
    VALUE_OTHER
} value_kind;

static value_kind kind_of(const option_row *row)
{
    static const char *const files[] = {"FILE", "PATH", "PROGRAM"};
    if (row->kind == OPTION_WORD || row->kind == OPTION_MODE)
        return VALUE_WORDS;
    if (row->value == NULL)
        return VALUE_NONE;
    if (strcmp(row->value, "DIR") == 0)
        return VALUE_FOLDER;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (strcmp(row->value, files[i]) == 0)
            return VALUE_FILE;
    return VALUE_OTHER;
}

/* "a|b" as "a b". */
static void print_words(const char *value)
{
    for (const char *c = value; *c != '\0'; c++)
        putchar(*c == '|' ? ' ' : *c);
}

/* `before`, then the commands or benchmarks, with `separator` between them. */
static void print_names(const char *before, const command_row *rows, int n, const char *separator)
{
    for (int i = 0; i < n; i++)
        printf("%s%s", i > 0 ? separator : before, rows[i].name);
}

/* Inside a shell's single quotes, in which `special` letters also need a backslash. */
static void print_quoted(const char *text, const char *special, const char *quote)
{
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '\'')
            fputs(quote, stdout);
        else if (strchr(special, *c) != NULL)
            printf("\\%c", *c);
        else
            putchar(*c);
    }
}

/* One spelling of a flag. */
typedef struct flag {
    const option_row *row;
    char spelling[OPTION_NAME_BYTES];
    const char *dashes; /* before the spelling; "" if it is a letter with its own */
    value_kind kind;
    char help[OPTION_TEXT_BYTES]; /* in the words of the commands that are asked for */
} flag;

/* Calls `print` for each spelling of each row that has a bit of `flags`. */
static void for_each_flag(unsigned flags, void (*print)(const flag *))
{
    flag f;
    bool negated;
    for (size_t r = 0; r < options_table_count; r++) {
        f.row = &options_table[r];
        if ((f.row->commands & flags) == 0)
            continue;
        option_text_help(flags, f.row, f.help);
        for (int i = 0; options_table_spelling(f.row, i, f.spelling, &negated); i++) {
            f.dashes = f.spelling[0] == '-' ? "" : "--";
            f.kind = negated ? VALUE_NONE : kind_of(f.row);
            print(&f);
        }
    }
}

static void print_flags(const command_row *rows, int n, void (*print)(const flag *))
{
    for (int i = 0; i < n; i++) {
        if (rows[i].flags == 0)
            continue;
        printf("    (%s) flags=(", rows[i].name);
        for_each_flag(rows[i].flags, print);
        puts(") ;;");
    }
}

/* What bash and zsh read alike: the rest of a loop over the words before the cursor, $word, which
 * finds the command; then its flags and the words that may follow it. */
static void print_cases(void (*print)(const flag *))
{
    print_names("        case $command:$word in\n        (:", command_table, command_table_count,
                "|:");
    print_names(") command=$word ;;\n        (bench:", benchmark_table, benchmark_table_count,
                "|bench:");
    puts(") command=$word ;;\n        (doctor:run) command=run ;;\n        esac\n"
         "    done\n"
         "    case ${command:-train} in");
    print_flags(command_table, command_table_count, print);
    print_flags(benchmark_table, benchmark_table_count, print);
    print_names("    esac\n    case $command in\n    ('') names='", command_table,
                command_table_count, " ");
    print_names("' ;;\n    (help) names='all ", command_table, command_table_count, " ");
    print_names("' ;;\n    (bench) names='", benchmark_table, benchmark_table_count, " ");
    puts("' ;;");
    for (int i = 0; i < N_WORDS; i++)
        printf("    (%s) names='%s' ;;\n", WORDS[i].command, words_after(i));
    puts("    esac");
}

static void print_bash_flag(const flag *f)
{
    printf(" %s%s", f->dashes, f->spelling);
}

/* The case of a value, after "--flag" or "--flag=". Of a mode it follows "=" alone. */
static void print_bash_value(const option_row *row)
{
    char spelling[OPTION_NAME_BYTES];
    bool negated;
    value_kind kind = kind_of(row);
    const char *separator = "    ";
    if (kind == VALUE_NONE)
        return;
    for (int i = 0; options_table_spelling(row, i, spelling, &negated) && !negated; i++) {
        const char *dashes = spelling[0] == '-' ? "" : "--";
        if (row->kind != OPTION_MODE)
            printf("%s%s%s", separator, dashes, spelling);
        printf("%s%s%s=", row->kind != OPTION_MODE ? "|" : separator, dashes, spelling);
        separator = "|";
    }
    printf(") COMPREPLY=(");
    if (kind == VALUE_WORDS) {
        printf("$(compgen -W '");
        print_words(row->value);
        printf("' -- \"$cur\")");
    } else if (kind == VALUE_FOLDER) {
        printf("$(compgen -d -- \"$cur\")");
    } else if (kind == VALUE_FILE) {
        printf("$(compgen -f -- \"$cur\")");
    }
    puts("); return ;;");
}

/* bash takes "--model=c" apart at "=". */
static void print_bash(void)
{
    puts("# bash: source <(mnist_ddp completion bash)\n"
         "_mnist_ddp() {\n"
         "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
         "    local command='' names='' word\n"
         "    local -a flags=()\n"
         "    if [ \"$cur\" = = ]; then cur='' prev=$prev=; fi\n"
         "    if [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD - 2]}=; fi\n"
         "    case $prev in");
    for (size_t r = 0; r < options_table_count; r++)
        print_bash_value(&options_table[r]);
    puts("    esac\n"
         "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do");
    print_cases(print_bash_flag);
    puts("    [[ $cur == -* ]] && names=\"${flags[*]}\"\n"
         "    COMPREPLY=($(compgen -W \"$names\" -- \"$cur\"))\n"
         "}\n"
         "complete -o default -F _mnist_ddp mnist_ddp");
}

/* '--model=[the network]:value:(mlp cnn)' */
static void print_zsh_flag(const flag *f)
{
    bool is_mode = f->row->kind == OPTION_MODE, is_letter = f->dashes[0] == '\0';
    const char *separator = f->kind == VALUE_NONE || is_letter ? "" : is_mode ? "=-" : "=";
    printf(" \\\n        '%s%s%s[", f->dashes, f->spelling, separator);
    print_quoted(f->help, "[]:\\", "'\\''");
    putchar(']');
    if (f->kind == VALUE_WORDS) {
        printf("%s:value:(", is_mode ? ":" : "");
        print_words(f->row->value);
        putchar(')');
    } else if (f->kind != VALUE_NONE) {
        printf(":value:%s", f->kind == VALUE_FOLDER ? "_files -/"
                            : f->kind == VALUE_FILE ? "_files"
                                                    : " ");
    }
    putchar('\'');
}

static void print_zsh(void)
{
    puts("#compdef mnist_ddp\n"
         "# zsh: mnist_ddp completion zsh >\"${fpath[1]}/_mnist_ddp\"\n"
         "_mnist_ddp() {\n"
         "    local -a flags\n"
         "    local command='' names='' word\n"
         "    for word in ${words[2,CURRENT-1]}; do");
    print_cases(print_zsh_flag);
    puts("    if [ \"$command\" = run ]; then names='*:file:_files'; "
         "else names=\"*:word:($names)\"; fi\n"
         "    _arguments -S \"$flags[@]\" \"$names\"\n"
         "}\n"
         "# zsh calls the file itself the first time, if it is found in $fpath.\n"
         "if [ \"$funcstack[1]\" = _mnist_ddp ]; then _mnist_ddp; else compdef _mnist_ddp "
         "mnist_ddp; fi");
}

/* complete -c mnist_ddp -n '__mnist_ddp_is train eval' -l model -x -a 'mlp cnn' -d '...' */
static void print_fish_flag(const flag *f)
{
    value_kind kind = f->row->kind == OPTION_MODE ? VALUE_NONE : f->kind;
    bool is_letter = f->dashes[0] == '\0';
    printf("complete -c mnist_ddp -n '__mnist_ddp_is");
    for (int i = 0; i < command_table_count; i++)
        if (i != COMMAND_BENCH && (f->row->commands & command_table[i].flags) != 0)
            printf(" %s", command_table[i].name);
    for (int i = 0; i < benchmark_table_count; i++)
        if ((f->row->commands & benchmark_table[i].flags) != 0)
            printf(" %s", benchmark_table[i].name);
    printf("' -%s %s", is_letter ? "s" : "l", f->spelling + is_letter);
    if (kind == VALUE_WORDS) {
        printf(" -x -a '");
        print_words(f->row->value);
        putchar('\'');
    } else if (kind != VALUE_NONE) {
        printf(kind == VALUE_FOLDER ? " -x -a '(__fish_complete_directories)'"
               : kind == VALUE_FILE ? " -r -F"
                                    : " -x");
    }
    printf(" -d '");
    print_quoted(f->help, "\\", "\\'");
    puts("'");
}

static void print_fish_words(const char *after, const command_row *rows, int n)
{
    for (int i = 0; i < n; i++) {
        printf("complete -c mnist_ddp -f -n '__mnist_ddp_is %s' -a %s -d '", after, rows[i].name);
        print_quoted(rows[i].summary, "\\", "\\'");
        puts("'");
    }
}

static void print_fish(void)
{
    puts("# fish: mnist_ddp completion fish >~/.config/fish/completions/mnist_ddp.fish\n"
         "function __mnist_ddp_command\n"
         "    set -l command none\n"
         "    for word in (commandline -opc)[2..-1]\n"
         "        switch $command:$word");
    print_names("            case none:", command_table, command_table_count, " none:");
    print_names("\n                set command $word\n            case bench:", benchmark_table,
                benchmark_table_count, " bench:");
    puts("\n                set command $word\n"
         "            case doctor:run\n                set command run\n"
         "        end\n"
         "    end\n"
         "    echo $command\n"
         "end\n"
         "function __mnist_ddp_is\n"
         "    set -l command (__mnist_ddp_command)\n"
         "    contains -- $command $argv; or begin\n"
         "        test $command = none; and contains -- train $argv\n"
         "    end\n"
         "end");
    print_fish_words("none", command_table, command_table_count);
    print_fish_words("help", command_table, command_table_count);
    print_fish_words("bench", benchmark_table, benchmark_table_count);
    for (int i = 0; i < N_WORDS; i++)
        printf("complete -c mnist_ddp -f -n '__mnist_ddp_is %s' -a '%s'\n", WORDS[i].command,
               words_after(i));
    for_each_flag(FOR_ALL, print_fish_flag);
}

int completion_print(const char *shell)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++)
        if (strcmp(shell, shells[i].name) == 0) {
            shells[i].print();
            return EXIT_SUCCESS;
        }
    FAIL(STATUS_INVALID, "completion: '%.80s' is not one of bash, zsh and fish", shell);
    return exit_code_failed(STATUS_INVALID, EXIT_CODE_USAGE);
}

int completion_command(const options *opts)
{
    if (opts->shell != NULL)
        return completion_print(opts->shell);
    FAIL(STATUS_INVALID, "completion: for which shell? There are bash, zsh and fish");
    return exit_code_failed(STATUS_INVALID, EXIT_CODE_USAGE);
}
