#include "app/options/options.h"

#include "app/options/options_table.h"
#include "app/options/training_values.h"
#include "base/file.h"
#include "base/host.h"
#include "base/log.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

enum { CANDIDATES_BYTES = 512, SHOWN_BYTES = 80 };

static const char ENVIRONMENT_PREFIX[] = "MNIST_DDP_";

/* Variables with our prefix that are no settings, and what those of the emulated device begin with.
 */
static const char *const OTHER_VARIABLES[] = {
    "DATA",          "MPI_MODULE",        "MPIRUN",   "GLOO_MODULE", "GLOO_CLAMP", "CUDA_MODULE",
    "CURL_MODULE",   "MICROHTTPD_MODULE", "LAUNCHED", "LOG_TTY",     "RUN_LOG",    "TEST_DEVICE",
    "CUDA_AUTOTUNE", "DUMP_DIR"};
static const char EMULATED_PREFIX[] = "EMULATED_";

/* One word of the command line, taken apart. */
typedef struct argument {
    bool is_flag;
    char name[OPTION_NAME_BYTES]; /* normalized, no dashes in front; "" if impossible */
    const char *value;            /* after '='; NULL */
} argument;

static argument take_apart(const char *word)
{
    argument arg = {.is_flag = word[0] == '-' && word[1] != '\0'};
    if (strcmp(word, "-h") == 0)
        word = "--help";
    if (!arg.is_flag)
        return arg;
    if (word[1] != '-') { /* "-r 3", "-r3" or "-r=3" */
        snprintf(arg.name, sizeof arg.name, "%.2s", word);
        arg.value = word[2] == '\0' ? NULL : word + 2 + (word[2] == '=');
        return arg;
    }
    char name[OPTION_NAME_BYTES];
    size_t length = strcspn(word + 2, "=");
    arg.value = word[2 + length] == '=' ? word + 2 + length + 1 : NULL;
    if (length >= sizeof name)
        return arg;
    memcpy(name, word + 2, length);
    name[length] = '\0';
    options_table_normalize(name, arg.name);
    return arg;
}

/* "-np": a letter, and what may be its value. */
static bool is_glued(const char *word)
{
    return word[0] == '-' && word[1] != '-' && word[1] != '\0' && word[2] != '\0';
}

/* "-1" and ".5" are values, "-x" is not. */
static bool looks_like_flag(const char *word)
{
    return word[0] == '-' && word[1] != '\0' && !isdigit((unsigned char)word[1]) && word[1] != '.';
}

/* Whether it is no flag. A value of store may be a negative number. */
static bool is_word(const options *opts, const char *word)
{
    return word[0] != '-' || word[1] == '\0' ||
           (opts->command == COMMAND_STORE && !looks_like_flag(word));
}

/* The row that a flag means: its own spelling, else the only one that begins so. */
static int find_flag(const char *name, unsigned commands, option_match *match, char *candidates)
{
    if (name[0] == '\0')
        return 0;
    if (options_table_find(name, commands, match))
        return 1;
    return options_table_find_prefix(name, commands, match, candidates, CANDIDATES_BYTES);
}

/* Whose flags the command takes. Those of doctor are the ones of the run that it looks at. */
static unsigned flags_of(const options *opts)
{
    return 1u << opts->command | (opts->command == COMMAND_DOCTOR ? 1u << opts->examined : 0);
}

/* Whether a program follows the flags. */
static bool takes_program(const options *opts)
{
    return opts->command == COMMAND_RUN ||
           (opts->command == COMMAND_DOCTOR && opts->examined == COMMAND_RUN);
}

/* Whose flags one may be, in the first pass. The letters of bench are known after that word only:
 * "-epochs" is a slip, and no -e. */
static unsigned commands_of(const options *opts, const argument *arg)
{
    if (takes_program(opts))
        return flags_of(opts);
    return opts->command != COMMAND_BENCH && arg->name[0] == '-' ? FOR_ALL & ~FOR_BENCH : FOR_ALL;
}

static bool could_be_value(option_match match, const char *word)
{
    options scratch = {0};
    status st = options_value_set(&scratch, match, word, SOURCE_COMMAND_LINE, "");
    options_free(&scratch);
    return st == STATUS_OK;
}

/* "--resume auto": a switch has its value after '=', so that a command may follow it. */
static status check_stray_value(const char *flag, const char *word)
{
    char candidates[CANDIDATES_BYTES];
    argument before = take_apart(flag);
    option_match match;
    command which;
    if (!before.is_flag || before.value != NULL ||
        find_flag(before.name, FOR_ALL, &match, candidates) != 1 ||
        (match.row->kind != OPTION_SWITCH && match.row->kind != OPTION_MODE))
        return STATUS_OK;
    bool is_value = could_be_value(match, word);
    if (!is_value && match.row->kind == OPTION_MODE &&
        command_table_find(word, &which) != STATUS_OK)
        return FAIL(STATUS_INVALID,
                    "'%.*s' is not a command; to go on with that run: mnist_ddp %s %.*s",
                    SHOWN_BYTES, word, match.row->name, SHOWN_BYTES, word);
    if (!is_value)
        return STATUS_OK;
    return FAIL(STATUS_INVALID,
                "'%.*s' is not a command; as the value of --%s it stands after '=': --%s=%.*s",
                SHOWN_BYTES, word, match.row->name, match.row->name, SHOWN_BYTES, word);
}

/* A word too many. */
static status refuse_word(const char *word)
{
    return FAIL(STATUS_INVALID,
                "'%.*s': one command is enough; a value follows its flag (--epochs 3), that of a "
                "switch after '=' (--overlap=false)",
                SHOWN_BYTES, word);
}

/* First pass: which command this is. A flag's meaning depends on it, and it may follow flags. */
static status find_command(int argc, char **argv, options *opts)
{
    bool help = false, version = false;
    int words = 0;
    char candidates[CANDIDATES_BYTES];
    opts->command = opts->examined = COMMAND_TRAIN;
    opts->help_topic = COMMAND_HELP;
    for (int i = 1; i < argc; i++) {
        argument arg = take_apart(argv[i]);
        option_match match;
        unsigned commands = commands_of(opts, &arg);
        if (takes_program(opts) && (!arg.is_flag || strcmp(argv[i], "--") == 0)) {
            opts->program = argv + i + (arg.is_flag ? 1 : 0);
            break; /* what follows is the program's */
        }
        if (opts->command == COMMAND_STORE && strcmp(argv[i], "--") == 0) {
            opts->program = argv + i + 1;
            while (++i < argc)
                TRY(command_words_take(opts, argv[i], words++));
        } else if (is_word(opts, argv[i])) {
            if (!command_words_are_free(opts)) /* "--test 1" is test and an index */
                TRY(check_stray_value(argv[i - 1], argv[i]));
            TRY(command_words_take(opts, argv[i], words++));
        } else if (find_flag(arg.name, commands, &match, candidates) == 0) {
            break; /* its value would look like a command; the second pass names the flag */
        } else {
            help = help || match.row->kind == OPTION_HELP;
            version = version || match.row->kind == OPTION_VERSION;
            if (options_value_wanted(match.row) && arg.value == NULL && i + 1 < argc &&
                !looks_like_flag(argv[i + 1]))
                i++;
        }
    }
    if (help && opts->command != COMMAND_HELP) {
        if (words > 0)
            opts->help_topic = opts->resumes ? COMMAND_RESUME : opts->command;
        opts->command = COMMAND_HELP;
    } else if (version) {
        opts->command = COMMAND_VERSION;
    }
    return STATUS_OK;
}

static status unknown_flag(const options *opts, const char *word, const argument *arg)
{
    int length = (int)strcspn(word, "=");
    length = length < SHOWN_BYTES ? length : SHOWN_BYTES;
    option_match match;
    bool is_letter = arg->name[0] == '-' && word[2] == '\0';
    if ((is_letter || arg->name[0] != '-') && options_table_find(arg->name, FOR_ALL, &match)) {
        for (int i = 0; i < command_table_count; i++)
            if (match.row->commands & (1u << i))
                return FAIL(STATUS_INVALID, "%.*s: a flag of 'mnist_ddp %s', not of '%s'", length,
                            word, command_table[i].name, command_table[opts->command].name);
    }
    char meant[OPTION_NAME_BYTES], name[OPTION_NAME_BYTES];
    snprintf(name, sizeof name, "%s", arg->name);
    if (arg->name[0] == '-') /* one dash too few */
        options_table_normalize(word + 1, name);
    options_table_nearest(name, flags_of(opts), meant);
    if (meant[0] != '\0' && meant[0] != '-')
        return FAIL(STATUS_INVALID, "%.*s: no such flag; did you mean --%s?", length, word, meant);
    return FAIL(STATUS_INVALID, "%.*s: no such flag; 'mnist_ddp help %s' lists them", length, word,
                command_table[opts->command].name);
}

/* Takes the flag argv[*at], and the word after it if that is its value. */
static status take_flag(options *opts, int argc, char **argv, int *at)
{
    char candidates[CANDIDATES_BYTES], where[OPTION_NAME_BYTES + 2], allowed[OPTION_NAME_BYTES];
    const char *word = argv[*at];
    argument arg = take_apart(word);
    option_match match;
    int found = find_flag(arg.name, flags_of(opts), &match, candidates);
    if (found == 0 || is_glued(word)) {
        const char *answer = foreign_words_answer(word, flags_of(opts));
        if (answer != NULL)
            return FAIL(STATUS_INVALID, "%.*s: %s", SHOWN_BYTES, word, answer);
    }
    if (found == 0)
        return unknown_flag(opts, word, &arg);
    if (found > 1)
        return FAIL(STATUS_INVALID, "--%s: could be %s", arg.name, candidates);
    const option_row *row = match.row;
    snprintf(where, sizeof where, "--%s", row->name);
    const char *value = arg.value;
    if (!options_value_wanted(row)) {
        value = value != NULL ? value : "true";
    } else if (value == NULL) {
        options_value_allowed(row, allowed, sizeof allowed);
        if (*at + 1 >= argc || looks_like_flag(argv[*at + 1]))
            return FAIL(STATUS_INVALID, "%s: needs a value: %s=%s (allowed: %s)", where, where,
                        row->value, allowed);
        value = argv[++*at];
    }
    if (row->group == GROUP_LAUNCHER && opts->command != COMMAND_SAMPLER &&
        row->offset != offsetof(options, local_rank) && row->offset != offsetof(options, launcher))
        opts->launch_flags_given = true;
    return options_value_set(opts, match, value, SOURCE_COMMAND_LINE, where);
}

/* "resume RUN" is "train --run-dir=RUN --resume". */
static status take_resume(options *opts)
{
    if (opts->n_runs > 0 && opts->run_dir != NULL)
        return FAIL(STATUS_INVALID, "resume: %.*s and --run-dir=%.*s: name one run", SHOWN_BYTES,
                    opts->runs[0], SHOWN_BYTES, opts->run_dir);
    if (opts->n_runs > 0)
        TRY(options_value_set_named(opts, "run-dir", opts->runs[0], SOURCE_COMMAND_LINE,
                                    "run-dir"));
    return opts->resume != NULL
               ? STATUS_OK
               : options_value_set_named(opts, "resume", "must", SOURCE_COMMAND_LINE, "resume");
}

static status read_command_line(int argc, char **argv, options *opts)
{
    int words = 0;
    for (int i = 1; i < argc && argv + i != opts->program; i++) {
        if (opts->program != NULL && strcmp(argv[i], "--") == 0)
            break;
        if (!is_word(opts, argv[i]))
            TRY(take_flag(opts, argc, argv, &i));
        else if (words++ >= opts->words)
            return refuse_word(argv[i]);
    }
    if (opts->command == COMMAND_EVAL && opts->n_runs > 0 && opts->checkpoint != NULL)
        return FAIL(STATUS_INVALID, "eval: %.*s and --checkpoint=%.*s: name one model", SHOWN_BYTES,
                    opts->runs[0], SHOWN_BYTES, opts->checkpoint);
    return opts->resumes ? take_resume(opts) : STATUS_OK;
}

/* Rows of the launcher that are our own. */
static bool is_torchruns(const option_row *row)
{
    if (row->group != GROUP_LAUNCHER && row->group != GROUP_PROGRAM)
        return false;
    static const size_t own[] = {
        offsetof(options, world_size),       offsetof(options, local_rank),
        offsetof(options, local_world_size), offsetof(options, exit_code),
        offsetof(options, launcher),         offsetof(options, run.use_env)};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (row->offset == own[i])
            return false;
    return true;
}

/* Takes PET_NNODES, PET_MASTER_ADDR and so on; an empty one is not set. MNIST_DDP_<NAME>, read
 * afterwards, wins over them. */
static status read_torchruns(options *opts)
{
    char name[OPTION_NAME_BYTES + 8];
    command of = opts->command == COMMAND_DOCTOR ? opts->examined : opts->command;
    unsigned commands = 1u << of;
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        if (!is_torchruns(row) || (row->commands & commands) == 0)
            continue;
        snprintf(name, sizeof name, "PET_%s", row->name);
        for (char *c = name; *c != '\0'; c++)
            *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        const char *value = environment_text(name);
        if (value != NULL)
            TRY(options_value_set(opts, (option_match){row, false}, value, SOURCE_ENVIRONMENT,
                                  name));
    }
    return STATUS_OK;
}

static bool is_other_variable(const char *name)
{
    for (size_t i = 0; i < sizeof OTHER_VARIABLES / sizeof OTHER_VARIABLES[0]; i++)
        if (strcmp(name, OTHER_VARIABLES[i]) == 0)
            return true;
    return strncmp(name, EMULATED_PREFIX, strlen(EMULATED_PREFIX)) == 0;
}

/* What to do instead of a flag's name that is none here; NULL: nobody knows. */
static const char *answer_for_setting(const char *name, unsigned commands)
{
    char flag[OPTION_NAME_BYTES + 2];
    snprintf(flag, sizeof flag, "--%s", name);
    return foreign_words_answer(flag, commands);
}

/* A variable with our prefix that is no setting: said once, by the launcher and not by its workers.
 */
static void warn_variable(const char *variable, const char *name)
{
    if (getenv("MNIST_DDP_LAUNCHED") != NULL)
        return;
    char meant[OPTION_NAME_BYTES];
    const char *answer = answer_for_setting(name, FOR_ALL);
    options_table_nearest(name, FOR_ALL, meant);
    for (char *c = meant; *c != '\0'; c++)
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    if (answer != NULL)
        LOG_W("%s: not a setting, ignored: %s", variable, answer);
    else if (meant[0] != '\0')
        LOG_W("%s: not a setting, ignored; did you mean %s%s?", variable, ENVIRONMENT_PREFIX,
              meant);
    else
        LOG_W("%s: not a setting, ignored", variable);
}

static status read_environment(options *opts)
{
    size_t prefix = strlen(ENVIRONMENT_PREFIX);
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        size_t length = strcspn(*entry, "=");
        char variable[OPTION_NAME_BYTES + sizeof ENVIRONMENT_PREFIX], name[OPTION_NAME_BYTES];
        if (strncmp(*entry, ENVIRONMENT_PREFIX, prefix) != 0 || length >= sizeof variable)
            continue;
        memcpy(variable, *entry, length);
        variable[length] = '\0';
        if (is_other_variable(variable + prefix))
            continue;
        options_table_normalize(variable + prefix, name);
        for (char *c = name; *c != '\0'; c++)
            *c = (char)tolower((unsigned char)*c);
        option_match match;
        const char *value = (*entry)[length] == '=' ? *entry + length + 1 : "";
        if (!options_table_find(name, FOR_ALL, &match) || match.row->kind >= OPTION_HELP)
            warn_variable(variable, name);
        else if (match.row->commands & flags_of(opts))
            TRY(options_value_set(opts, match, value, SOURCE_ENVIRONMENT, variable));
    }
    return STATUS_OK;
}

/* A file describes a run of train; the other commands take from it what is theirs. */
static status take_key(options *opts, bool *seen, const char *key, const char *value,
                       const char *where)
{
    unsigned mine = flags_of(opts), allowed = mine | FOR_TRAIN;
    char name[OPTION_NAME_BYTES], meant[OPTION_NAME_BYTES];
    options_table_normalize(key, name);
    option_match match;
    bool found = options_table_find(name, allowed, &match);
    if (!found || match.row->kind >= OPTION_HELP ||
        match.row->offset == offsetof(options, config)) {
        const char *answer = found ? NULL : answer_for_setting(name, allowed);
        if (answer != NULL)
            return FAIL(STATUS_INVALID, "%s: %.*s: %s", where, SHOWN_BYTES, key, answer);
        options_table_nearest(name, allowed, meant);
        if (!found && meant[0] != '\0')
            return FAIL(STATUS_INVALID, "%s: %.*s: no such setting; did you mean %s?", where,
                        SHOWN_BYTES, key, meant);
        return FAIL(STATUS_INVALID, "%s: %.*s: not a setting of '%s' that a file may hold", where,
                    SHOWN_BYTES, key, command_table[opts->command].name);
    }
    seen += match.row - options_table;
    if (*seen)
        return FAIL(STATUS_INVALID, "%s: %.*s: given a second time", where, SHOWN_BYTES, key);
    *seen = true;
    if ((match.row->commands & mine) == 0)
        return STATUS_OK;
    char place[1024];
    snprintf(place, sizeof place, "%.900s: %s", where, match.row->name);
    return options_value_set(opts, match, value, SOURCE_FILE, place);
}

enum { FILE_LIMIT_BYTES = 1 << 20, KEY_SHOWN_BYTES = 60 };

/* A string without zero bytes; NULL if it is no such scalar. */
static const char *scalar_text(const yaml_node_t *node)
{
    const char *text = (const char *)node->data.scalar.value;
    bool ok = node->type == YAML_SCALAR_NODE && strlen(text) == node->data.scalar.length;
    return ok ? text : NULL;
}

static bool is_null(const yaml_node_t *node)
{
    const char *text = scalar_text(node);
    return text != NULL && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (strcmp(text, "") == 0 || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

/* "key: value" lines. Nodes are numbered in the order of the file: an alias has an older number. */
static status take_document(options *opts, const char *path, yaml_document_t *file)
{
    char where[FILE_PATH_BYTES + 16];
    bool seen[sizeof opts->given] = {false};
    const yaml_node_t *root = yaml_document_get_root_node(file);
    if (root == NULL || is_null(root))
        return STATUS_OK; /* nothing but comments */
    if (root->type != YAML_MAPPING_NODE)
        return FAIL(STATUS_INVALID, "%s:%zu: lines like \"batch-size: 64\" are wanted here", path,
                    root->start_mark.line + 1);
    for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start;
         pair < root->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name = yaml_document_get_node(file, pair->key);
        const yaml_node_t *value = yaml_document_get_node(file, pair->value);
        const char *key = scalar_text(name), *text = scalar_text(value);
        snprintf(where, sizeof where, "%s:%zu", path, name->start_mark.line + 1);
        if (key == NULL)
            return FAIL(STATUS_INVALID, "%s: a key must be a plain name", where);
        if (text == NULL || pair->value < pair->key)
            return FAIL(STATUS_INVALID, "%s: %.*s: one value is wanted here, not a list or a map",
                        where, KEY_SHOWN_BYTES, key);
        if (is_null(value))
            return FAIL(STATUS_INVALID, "%s: %.*s: has no value; remove the line for the default",
                        where, KEY_SHOWN_BYTES, key);
        TRY(take_key(opts, seen, key, text, where));
    }
    return STATUS_OK;
}

static status load_document(const char *path, yaml_parser_t *parser, yaml_document_t *out)
{
    if (yaml_parser_load(parser, out))
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "%s:%zu: not YAML: %s", path, parser->problem_mark.line + 1,
                parser->problem ? parser->problem : "unreadable");
}

/* --config: flat YAML, "key: value" with scalars only. Failures name the file and the line. */
static status read_file(options *opts)
{
    const char *path = opts->config;
    char *text = NULL;
    size_t size_bytes = 0;
    yaml_parser_t parser;
    yaml_document_t file, second;
    if (file_read(path, FILE_LIMIT_BYTES, &text, &size_bytes) != STATUS_OK)
        return status_context(STATUS_INVALID, "--config");
    if (!yaml_parser_initialize(&parser)) {
        free(text);
        return FAIL(STATUS_NO_MEMORY, "%s: the YAML parser", path);
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size_bytes);
    status st = load_document(path, &parser, &file);
    if (st == STATUS_OK) {
        st = take_document(opts, path, &file);
        yaml_document_delete(&file);
    }
    if (st == STATUS_OK)
        st = load_document(path, &parser, &second);
    if (st == STATUS_OK) {
        const yaml_node_t *root = yaml_document_get_root_node(&second);
        if (root != NULL)
            st = FAIL(STATUS_INVALID, "%s:%zu: a second document; one file is one document", path,
                      root->start_mark.line + 1);
        yaml_document_delete(&second);
    }
    yaml_parser_delete(&parser);
    free(text);
    return st;
}

int options_words_of(const options *opts, int at, const char *name)
{
    char candidates[CANDIDATES_BYTES];
    argument arg = take_apart(opts->command_line[at]);
    option_match match;
    if (!arg.is_flag || find_flag(arg.name, flags_of(opts), &match, candidates) != 1 ||
        strcmp(match.row->name, name) != 0)
        return 0;
    return arg.value != NULL ? 1 : 2;
}

bool options_given(const options *opts, const char *name)
{
    return options_value_source(opts, name) != SOURCE_DEFAULT;
}

/* Those of the command or benchmark alone. */
static status set_own_defaults(options *opts)
{
    const command_row *row = command_table_row(opts->command, opts->benchmark);
    for (const command_default *own = row->defaults; own->setting != NULL; own++)
        TRY(options_value_set_named(opts, own->setting, own->value, SOURCE_DEFAULT, own->setting));
    return STATUS_OK;
}

static status set_defaults(options *opts)
{
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        char *field = (char *)opts + row->offset;
        if (row->initial != NULL)
            TRY(options_value_set(opts, (option_match){row, false}, row->initial, SOURCE_DEFAULT,
                                  row->name));
        else if (row->kind == OPTION_INTEGER)
            *(int64_t *)(void *)field = -1;
        else if (row->kind == OPTION_REAL)
            *(double *)(void *)field = -1.0;
    }
    return STATUS_OK;
}

/* Other spellings of one value: backends in any case, as torch takes them; "gpu" for "cuda". */
static status unify_spellings(options *opts)
{
    char *device = NULL;
    for (char *c = opts->backend; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
    if (strncasecmp(opts->device, "gpu", 3) != 0 || !strchr(":", opts->device[3]))
        return STATUS_OK;
    if (asprintf(&device, "cuda%s", opts->device + 3) < 0)
        return FAIL(STATUS_NO_MEMORY, "--device=%.*s", SHOWN_BYTES, opts->device);
    free(opts->device);
    opts->device = device;
    return STATUS_OK;
}

status options_read(int argc, char **argv, options *out)
{
    options opts = {.command_line = argv};
    status st = set_defaults(&opts);
    if (st == STATUS_OK)
        st = find_command(argc, argv, &opts);
    if (st == STATUS_OK)
        st = set_own_defaults(&opts);
    if (st == STATUS_OK && opts.command != COMMAND_HELP && opts.command != COMMAND_VERSION) {
        st = read_command_line(argc, argv, &opts);
        if (st == STATUS_OK)
            st = read_torchruns(&opts);
        if (st == STATUS_OK)
            st = read_environment(&opts);
        if (st == STATUS_OK && opts.config != NULL)
            st = read_file(&opts);
        if (st == STATUS_OK)
            st = unify_spellings(&opts);
    }
    if (st == STATUS_OK)
        *out = opts;
    else
        options_free(&opts);
    return st;
}

status options_parse(int argc, char **argv, options *out)
{
    options opts;
    TRY(options_read(argc, argv, &opts));
    status st = options_check(&opts);
    if (st == STATUS_OK)
        *out = opts;
    else
        options_free(&opts);
    return st;
}

void options_free(options *opts)
{
    if (opts == NULL)
        return;
    for (size_t i = 0; i < options_table_count; i++) {
        const option_row *row = &options_table[i];
        if (row->kind == OPTION_TEXT || row->kind == OPTION_WORD || row->kind == OPTION_MODE)
            free(*(char **)(void *)((char *)opts + row->offset));
    }
    free(opts->files);
    *opts = (options){0};
}

/* What no single setting can tell: settings that do not go together. */

/* Was `name` given, and not for another choice of `chooser` than the one that counts? A file may
 * hold settings of a schedule that the command line has replaced. */
static bool given_with(const options *opts, const char *name, const char *chooser)
{
    option_source source = options_value_source(opts, name);
    return source != SOURCE_DEFAULT && source >= options_value_source(opts, chooser);
}

static status check_optimizer(const options *opts)
{
    if (opts->momentum > 0.0 && strcmp(opts->optimizer, "sgd") != 0)
        return FAIL(STATUS_INVALID, "--momentum=%g: only sgd has it; add --optimizer=sgd",
                    opts->momentum);
    adam_betas betas;
    TRY(adam_betas_parse(opts->adam_betas, &betas));
    bool is_adam = strncmp(opts->optimizer, "adam", strlen("adam")) == 0;
    if (!is_adam && given_with(opts, "adam-betas", "optimizer"))
        return FAIL(STATUS_INVALID,
                    "--adam-betas=%s: only adam and adamw have them; add --optimizer=adam",
                    opts->adam_betas);
    return STATUS_OK;
}

static status check_schedule(const options *opts)
{
    bool onecycle = strcmp(opts->schedule, "onecycle") == 0;
    if (strcmp(opts->schedule, "step") != 0 && given_with(opts, "gamma", "schedule"))
        return FAIL(STATUS_INVALID, "--gamma=%g: only --schedule=step has it, not %s", opts->gamma,
                    opts->schedule);
    if (!onecycle && given_with(opts, "pct-start", "schedule"))
        return FAIL(STATUS_INVALID, "--pct-start=%g: only --schedule=onecycle has it, not %s",
                    opts->pct_start, opts->schedule);
    if (onecycle && opts->warmup_steps > 0)
        return FAIL(STATUS_INVALID,
                    "--warmup-steps=%lld: --schedule=onecycle rises by itself: give --pct-start, "
                    "the share of the steps in which it does",
                    (long long)opts->warmup_steps);
    if (opts->warmup_steps == 0 && given_with(opts, "warmup-factor", "schedule"))
        return FAIL(STATUS_INVALID, "--warmup-factor=%g: needs --warmup-steps=N",
                    opts->warmup_factor);
    return STATUS_OK;
}

static status check_tests(const options *opts)
{
    interval tests;
    TRY(interval_parse("--eval-every", 0, opts->eval_every, &tests));
    TRY(val_split_check(opts->val_split));
    if (opts->target_acc >= 0 && tests.count == 0)
        return FAIL(STATUS_INVALID, "--target-acc=%g: needs tests; leave --eval-every=0 out",
                    opts->target_acc);
    return STATUS_OK;
}

/* It says in plain words which of the two sizes was given. */
static status check_elastic_batch(const options *opts)
{
    bool is_global = opts->global_batch_size > 0;
    if (opts->elastic_batch == NULL || (strcmp(opts->elastic_batch, "global") == 0) == is_global)
        return STATUS_OK;
    return FAIL(STATUS_INVALID, "--elastic-batch=%s: give %s, which is what stays",
                opts->elastic_batch,
                is_global ? "--batch-size (per rank) in place of --global-batch-size"
                          : "--global-batch-size=N (of all ranks)");
}

void options_say_unused(const options *opts)
{
    bool powersgd = opts->comm_hook != NULL && strcmp(opts->comm_hook, "powersgd") == 0;
    bool saves = opts->save_model && !opts->dry_run, ddp = strcmp(opts->mode, "ddp") == 0;
    bool local = opts->sync_every > 1, ps = strcmp(opts->mode, "ps") == 0;
    bool pipeline = strcmp(opts->mode, "pipeline") == 0, tees = strcmp(opts->tee, "0") != 0;
    const struct {
        const char *name, *needs;
        bool is_used;
    } rows[] = {
        {"powersgd-rank", "--comm-hook=powersgd", powersgd},
        {"powersgd-start-iter", "--comm-hook=powersgd", powersgd},
        {"bucket-cap-mb", "--mode=ddp without --sync-every", ddp && !local},
        {"overlap", "--mode=ddp without --sync-every", ddp && !local},
        {"outer-lr", "--sync-every=2 or more", local},
        {"outer-momentum", "--sync-every=2 or more", local},
        {"async", "--mode=ps", ps},
        {"staleness", "--mode=ps --async", ps && opts->async},
        {"stages", "--mode=pipeline", pipeline},
        {"micro-batches", "--mode=pipeline", pipeline},
        {"pipeline-schedule", "--mode=pipeline", pipeline},
        {"duplicate-stdout-filters", "--tee=SPEC", tees},
        {"duplicate-stderr-filters", "--tee=SPEC", tees},
        {"log-line-prefix-template", "--tee=SPEC", tees},
        {"trace-steps", "--trace=FILE", opts->trace != NULL},
        {"event-log-steps", "--event-log=FILE", opts->event_log != NULL},
        {"save-every", "checkpoints, and this run writes none", saves},
        {"keep", "checkpoints, and this run writes none", saves},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && opts->command == COMMAND_TRAIN; i++)
        if (!rows[i].is_used && options_value_source(opts, rows[i].name) == SOURCE_COMMAND_LINE)
            LOG_W("--%s is not used: it needs %s", rows[i].name, rows[i].needs);
}

status options_check(options *opts)
{
    command of = opts->command == COMMAND_DOCTOR ? opts->examined : opts->command;
    if (of != COMMAND_TRAIN)
        return STATUS_OK;
    option_source global = options_value_source(opts, "global-batch-size");
    option_source local = options_value_source(opts, "batch-size");
    if (global != SOURCE_DEFAULT && global == local)
        return FAIL(STATUS_INVALID, "--batch-size (per rank) and --global-batch-size (of all "
                                    "ranks) exclude each other: give one");
    if (local > global)
        opts->global_batch_size = -1;
    TRY(check_elastic_batch(opts));
    augment images;
    interval saves;
    inject fault;
    TRY(check_optimizer(opts));
    TRY(check_schedule(opts));
    TRY(check_tests(opts));
    TRY(augment_parse(opts->augment, &images));
    TRY(interval_parse("--save-every", 1, opts->save_every, &saves));
    TRY(inject_parse(opts->inject, &fault));
    if (opts->nesterov && opts->momentum <= 0.0)
        return FAIL(STATUS_INVALID,
                    "--nesterov: needs a momentum; add --optimizer=sgd --momentum=0.9");
    return STATUS_OK;
}
