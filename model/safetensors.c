#include "model/safetensors.h"

#include "base/digest.h"
#include "base/file.h"
#include "base/half.h"
#include "base/json_text.h"
#include "base/memory.h"
#include "base/text.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What safetensors' reader and writer share. */

enum { SAFETENSORS_MAX_HEADER = 1 << 20, SAFETENSORS_ALIGN = 8 };

#define SAFETENSORS_HASH_KEY "fnv1a"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "the file's floats are copied as they are");

/* How many bytes the tensor has in a file; false if its shape is negative or the product overflows.
 */
static bool safetensors_size(const safetensors_tensor *tensor, size_t element_bytes,
                             size_t *size_bytes)
{
    size_t product = element_bytes;
    for (int d = 0; d < tensor->rank; d++)
        if (tensor->shape[d] < 0 || !memory_product(product, (size_t)tensor->shape[d], &product))
            return false;
    *size_bytes = product;
    return true;
}

static bool safetensors_printable(const char *name)
{
    for (const char *c = name; *c != '\0'; c++)
        if (*c < ' ' || *c > '~')
            return false;
    return name[0] != '\0';
}

/* The header's entry for a tensor whose bytes are [begin, end); NULL if memory is short. */
static json_t *tensor_json(const safetensors_tensor *tensor, size_t begin, size_t end)
{
    json_t *shape = json_array();
    for (int d = 0; d < tensor->rank; d++)
        if (json_array_append_new(shape, json_integer(tensor->shape[d])) != 0) {
            json_decref(shape);
            return NULL;
        }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)end);
}

static json_t *metadata_json(const safetensors_entry *entries, size_t n_entries, uint64_t hash)
{
    char hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    json_t *object = json_pack("{s:s}", "format", "pt");
    bool ok = object != NULL;
    for (size_t i = 0; ok && i < n_entries; i++)
        ok = json_object_set_new(object, entries[i].key, json_string(entries[i].value)) == 0;
    ok = ok && json_object_set_new(object, SAFETENSORS_HASH_KEY, json_string(hex)) == 0;
    if (ok)
        return object;
    json_decref(object);
    return NULL;
}

/* Adds the tensors to the header, and their memory to parts and to the hash. */
static status add_tensors(json_t *header, const safetensors_tensor *tensors, size_t n_tensors,
                          file_part *parts, uint64_t *hash)
{
    size_t offset = 0;
    for (size_t i = 0; i < n_tensors; i++) {
        const safetensors_tensor *tensor = &tensors[i];
        ASSERT(tensor->rank >= 0 && tensor->rank <= SAFETENSORS_MAX_RANK);
        size_t size_bytes = 0;
        if (!safetensors_size(tensor, sizeof(float), &size_bytes))
            return FAIL(STATUS_INVALID, "tensor %zu has an impossible shape", i);
        if (!safetensors_printable(tensor->name) || json_object_get(header, tensor->name) != NULL)
            return FAIL(STATUS_INVALID, "tensor %zu's name is not printable or not unique", i);
        json_t *entry = tensor_json(tensor, offset, offset + size_bytes);
        if (entry == NULL || json_object_set_new(header, tensor->name, entry) != 0)
            return FAIL(STATUS_NO_MEMORY, "a header of %zu tensors", n_tensors);
        parts[i] = (file_part){tensor->data, size_bytes};
        *hash = fnv1a(*hash, tensor->data, size_bytes);
        offset += size_bytes;
    }
    return STATUS_OK;
}

status safetensors_write(const char *path, const safetensors_tensor *tensors, size_t n_tensors,
                         const safetensors_entry *entries, size_t n_entries, uint64_t *hash)
{
    static const char padding[SAFETENSORS_ALIGN] = "       ";
    status st = STATUS_OK;
    uint64_t data_hash = FNV1A_START, file_hash = FNV1A_START;
    char *text = NULL;
    json_t *header = json_object();
    /* Length, header and padding go before the tensors. */
    file_part *parts = calloc(n_tensors + 3, sizeof *parts);
    json_t *none = json_null();
    if (header == NULL || parts == NULL || json_object_set(header, "__metadata__", none) != 0) {
        st = FAIL(STATUS_NO_MEMORY, "%s: a header of %zu tensors", path, n_tensors);
        goto out;
    }
    st = add_tensors(header, tensors, n_tensors, parts + 3, &data_hash);
    if (st != STATUS_OK) {
        st = status_context(st, "%s", path);
        goto out;
    }
    json_t *metadata = metadata_json(entries, n_entries, data_hash);
    if (metadata == NULL || json_object_set_new(header, "__metadata__", metadata) != 0 ||
        (text = json_dumps(header, JSON_COMPACT | JSON_ENSURE_ASCII)) == NULL) {
        st = FAIL(STATUS_INVALID, "%s: metadata that is not UTF-8, or no memory", path);
        goto out;
    }
    size_t length = strlen(text), pad = -length % SAFETENSORS_ALIGN;
    uint64_t header_bytes = length + pad;
    if (header_bytes > SAFETENSORS_MAX_HEADER) {
        st = FAIL(STATUS_INVALID, "%s: a header of %" PRIu64 " bytes", path, header_bytes);
        goto out;
    }
    parts[0] = (file_part){&header_bytes, sizeof header_bytes};
    parts[1] = (file_part){text, length};
    parts[2] = (file_part){padding, pad};
    for (int i = 0; i < 3; i++)
        file_hash = fnv1a(file_hash, parts[i].data, parts[i].size_bytes);
    st = file_write(path, parts, n_tensors + 3);
    if (st == STATUS_OK && hash != NULL)
        *hash = file_hash;

out:
    free(text);
    free(parts);
    json_decref(header);
    return st;
}

enum { PREFIX_BYTES = 8 };
static const size_t MAX_FILE_BYTES = (size_t)1 << 30;

struct safetensors {
    char *path;
    json_t *header; /* names and metadata point into it */
    char *data;     /* the tensors' bytes */
    size_t data_bytes;
    float *floats; /* the tensors, cast; NULL: all are F32 and lie in data */
    uint64_t hash; /* hash of the bytes before the data */
    safetensors_tensor *tensors;
    size_t n_tensors;
};

/* What a tensor's elements are in the file. */
typedef struct element {
    const char *dtype;
    size_t size_bytes;
} element;

typedef enum element_kind { F32, F64, F16, BF16 } element_kind;

static const element ELEMENTS[] = {
    [F32] = {"F32", sizeof(float)},
    [F64] = {"F64", sizeof(double)},
    [F16] = {"F16", sizeof(uint16_t)},
    [BF16] = {"BF16", sizeof(uint16_t)},
};

/* An entry of the header while the file is being checked. */
typedef struct span {
    safetensors_tensor tensor;
    const element *element;
    size_t begin, end; /* bytes of the data */
} span;

/* Reads the non-negative integer `value` of at most `limit`. */
static bool get_integer(const json_t *value, json_int_t limit, json_int_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > limit)
        return false;
    *out = json_integer_value(value);
    return true;
}

static status get_shape(const char *path, const json_t *value, safetensors_tensor *out)
{
    size_t rank = json_array_size(value);
    if (!json_is_array(value) || rank > SAFETENSORS_MAX_RANK)
        return FAIL(STATUS_INVALID, "%s: tensor '%.64s': the shape is not a list of at most %d",
                    path, out->name, SAFETENSORS_MAX_RANK);
    out->rank = (int)rank;
    for (size_t d = 0; d < rank; d++) {
        json_int_t side = 0;
        if (!get_integer(json_array_get(value, d), INT_MAX, &side))
            return FAIL(STATUS_INVALID, "%s: tensor '%.64s': dimension %zu is not in 0..%d", path,
                        out->name, d, INT_MAX);
        out->shape[d] = (int)side;
    }
    return STATUS_OK;
}

static status get_element(const char *path, const char *name, const json_t *value,
                          const element **out)
{
    const char *dtype = json_string_value(value);
    for (size_t i = 0; dtype != NULL && i < sizeof ELEMENTS / sizeof ELEMENTS[0]; i++)
        if (strcmp(dtype, ELEMENTS[i].dtype) == 0) {
            *out = &ELEMENTS[i];
            return STATUS_OK;
        }
    return FAIL(STATUS_INVALID,
                "%s: tensor '%.64s': the dtype is not \"F32\", \"F64\", \"F16\" or \"BF16\"", path,
                name);
}

/* Checks one entry of the header against itself and the size of the data. */
static status get_span(const safetensors *file, const char *name, const json_t *value, span *out)
{
    const char *path = file->path;
    *out = (span){.tensor.name = name};
    TRY(get_element(path, name, json_object_get(value, "dtype"), &out->element));
    TRY(get_shape(path, json_object_get(value, "shape"), &out->tensor));
    const json_t *offsets = json_object_get(value, "data_offsets");
    json_int_t begin = 0, end = 0, limit = (json_int_t)file->data_bytes;
    if (json_array_size(offsets) != 2 || !get_integer(json_array_get(offsets, 0), limit, &begin) ||
        !get_integer(json_array_get(offsets, 1), limit, &end) || begin > end)
        return FAIL(STATUS_INVALID,
                    "%s: tensor '%.64s': data_offsets are not [begin, end] within %zu bytes", path,
                    name, file->data_bytes);
    out->begin = (size_t)begin;
    out->end = (size_t)end;
    size_t size_bytes = 0;
    if (!safetensors_size(&out->tensor, out->element->size_bytes, &size_bytes) ||
        size_bytes != out->end - out->begin)
        return FAIL(STATUS_INVALID, "%s: tensor '%.64s': the shape does not fit its %zu bytes",
                    path, name, out->end - out->begin);
    return STATUS_OK;
}

static int by_begin(const void *a, const void *b)
{
    const span *left = a, *right = b;
    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    return (left->end > right->end) - (left->end < right->end);
}

static size_t n_elements(const span *s)
{
    return (s->end - s->begin) / s->element->size_bytes;
}

/* Copies a tensor's elements as float32 to `out`. */
static void cast(const char *data, const span *s, float *out)
{
    const element *e = s->element;
    size_t n = n_elements(s);
    const char *at = data + s->begin;
    if (e == &ELEMENTS[F32])
        memcpy(out, at, n * sizeof *out);
    for (size_t i = 0; i < n && e != &ELEMENTS[F32]; i++, at += e->size_bytes) {
        double value = 0;
        uint16_t bits = 0;
        if (e == &ELEMENTS[F64])
            memcpy(&value, at, sizeof value);
        else
            memcpy(&bits, at, sizeof bits);
        out[i] = e == &ELEMENTS[F64]   ? (float)value
                 : e == &ELEMENTS[F16] ? f16_to_f32(bits)
                                       : bf16_to_f32(bits);
    }
}

/* Sorted spans must follow one another from the first byte to the last. */
static status place_tensors(safetensors *file, const span *spans)
{
    size_t at = 0, count = 0;
    bool is_cast = false;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const span *s = &spans[i];
        if (s->begin != at)
            return FAIL(STATUS_INVALID, "%s: tensor '%.64s' begins at byte %zu, expected %zu",
                        file->path, s->tensor.name, s->begin, at);
        count += n_elements(s);
        at = s->end;
        is_cast = is_cast || s->element != &ELEMENTS[F32];
    }
    if (at != file->data_bytes)
        return FAIL(STATUS_INVALID, "%s: the tensors end at byte %zu of %zu", file->path, at,
                    file->data_bytes);
    if (is_cast)
        TRY(memory_alloc(sizeof *file->floats * count, (void **)&file->floats));
    float *to = is_cast ? file->floats : (float *)(void *)file->data;
    for (size_t i = 0; i < file->n_tensors; i++) {
        file->tensors[i] = spans[i].tensor;
        file->tensors[i].data = to;
        if (is_cast)
            cast(file->data, &spans[i], to);
        to += n_elements(&spans[i]);
    }
    return STATUS_OK;
}

static status check_metadata(const safetensors *file)
{
    json_t *metadata = json_object_get(file->header, "__metadata__");
    if (metadata == NULL)
        return STATUS_OK;
    if (!json_is_object(metadata))
        return FAIL(STATUS_INVALID, "%s: __metadata__ is not an object", file->path);
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            return FAIL(STATUS_INVALID, "%s: __metadata__ holds more than strings", file->path);
    }
    const char *want = safetensors_metadata(file, SAFETENSORS_HASH_KEY);
    char have[17];
    snprintf(have, sizeof have, "%016" PRIx64, fnv1a(FNV1A_START, file->data, file->data_bytes));
    if (want != NULL && strcmp(want, have) != 0)
        return FAIL(STATUS_INVALID,
                    "%s: damaged: its bytes hash to %s, not to what its header says", file->path,
                    have);
    return STATUS_OK;
}

static status get_tensors(safetensors *file)
{
    size_t n = 0;
    status st = STATUS_OK;
    span *spans = calloc(json_object_size(file->header) + 1, sizeof *spans);
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (spans == NULL || file->tensors == NULL)
        st = FAIL(STATUS_NO_MEMORY, "%s: %zu tensors", file->path, json_object_size(file->header));
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach(file->header, name, value)
    {
        if (st != STATUS_OK)
            break;
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (!safetensors_printable(name))
            st =
                FAIL(STATUS_INVALID, "%s: tensor %zu's name is not printable ASCII", file->path, n);
        else
            st = get_span(file, name, value, &spans[n++]);
    }
    file->n_tensors = n;
    if (st == STATUS_OK) {
        qsort(spans, n, sizeof *spans, by_begin);
        st = place_tensors(file, spans);
    }
    free(spans);
    return st;
}

/* torch.save writes a zip file, and before version 1.6 a pickle. */
static bool is_torch_save(const char *data, size_t size_bytes)
{
    return size_bytes > 4 &&
           (memcmp(data, "PK\3\4", 4) == 0 || memcmp(data, "\x80\2\x8a\n", 4) == 0);
}

static bool is_gzip(const char *data)
{
    return memcmp(data, "\x1f\x8b", 2) == 0;
}

static status refuse_torch_save(char *path)
{
    char python[] = "python3", c[] = "-c", target[] = "model.safetensors",
         script[] = "import sys, torch, safetensors.torch as s; "
                    "s.save_file(torch.load(sys.argv[1], \"cpu\", weights_only=True), sys.argv[2])";
    char *words[] = {python, c, script, path, target, NULL};
    char *line = shell_words_line(words);
    status st = FAIL(STATUS_INVALID,
                     "%s: a file of torch.save, not of safetensors; this converts a state_dict: %s",
                     path, line != NULL ? line : "safetensors.torch.save_file");
    free(line);
    return st;
}

/* Of a file whose first bytes are no length of a header. */
static status refuse_other(const char *path, const char *data)
{
    char start[PREFIX_BYTES * 4 + 1];
    size_t n = 0;
    while (n < PREFIX_BYTES && data[n] != '\n')
        n++;
    printable_bytes(data, n, start, sizeof start);
    return FAIL(STATUS_INVALID, "%s: not a safetensors file: it starts with '%s'%s", path, start,
                is_gzip(data)                     ? ", as what gzip has compressed"
                : memcmp(data, "\x89PNG", 4) == 0 ? ", as a PNG picture"
                                                  : "");
}

/* Parses the header, then moves the data to the start of the buffer, so that floats are aligned. */
static status take_header(safetensors *file, size_t size_bytes)
{
    uint64_t length = 0;
    if (size_bytes < PREFIX_BYTES)
        return FAIL(STATUS_INVALID, "%s: %zu bytes are too few for a safetensors file", file->path,
                    size_bytes);
    if (is_torch_save(file->data, size_bytes))
        return refuse_torch_save(file->path);
    memcpy(&length, file->data, sizeof length);
    bool fits = length <= SAFETENSORS_MAX_HEADER && length <= size_bytes - PREFIX_BYTES;
    if (length > UINT32_MAX || (!fits && is_gzip(file->data)))
        return refuse_other(file->path, file->data);
    if (!fits)
        return FAIL(STATUS_INVALID,
                    "%s: not a safetensors file: a header of %" PRIu64
                    " bytes is over 1 MiB or beyond the file's %zu",
                    file->path, length, size_bytes);
    json_error_t error;
    file->header =
        json_text_parse(file->data + PREFIX_BYTES, length, JSON_REJECT_DUPLICATES, &error);
    if (file->header == NULL && json_error_code(&error) == json_error_out_of_memory)
        return FAIL(STATUS_NO_MEMORY, "%s: its header", file->path);
    if (file->header == NULL) {
        char *quote = strstr(error.text, " near "); /* the rest quotes the file */
        if (quote != NULL)
            *quote = '\0';
        return FAIL(STATUS_INVALID, "%s: header, byte %d: %s", file->path, error.position,
                    error.text);
    }
    if (!json_is_object(file->header))
        return FAIL(STATUS_INVALID, "%s: the header is not a JSON object", file->path);
    file->hash = fnv1a(FNV1A_START, file->data, PREFIX_BYTES + length);
    file->data_bytes = size_bytes - PREFIX_BYTES - length;
    memmove(file->data, file->data + PREFIX_BYTES + length, file->data_bytes);
    return STATUS_OK;
}

status safetensors_open(const char *path, safetensors **out)
{
    size_t size_bytes = 0;
    safetensors *file = NULL;
    TRY(memory_alloc(sizeof *file, (void **)&file));
    status st = STATUS_OK;
    file->path = strdup(path);
    if (file->path == NULL)
        st = FAIL(STATUS_NO_MEMORY, "%s: its name", path);
    if (st == STATUS_OK)
        st = file_read(path, MAX_FILE_BYTES, &file->data, &size_bytes);
    if (st == STATUS_OK)
        st = take_header(file, size_bytes);
    if (st == STATUS_OK)
        st = get_tensors(file);
    if (st == STATUS_OK)
        st = check_metadata(file);
    if (st != STATUS_OK) {
        safetensors_close(file);
        return st;
    }
    *out = file;
    return STATUS_OK;
}

void safetensors_close(safetensors *file)
{
    if (file == NULL)
        return;
    json_decref(file->header);
    free(file->tensors);
    free(file->floats);
    free(file->data);
    free(file->path);
    free(file);
}

void safetensors_strip(safetensors *file, const char *prefix)
{
    size_t length = strlen(prefix);
    for (size_t i = 0; i < file->n_tensors; i++)
        if (strncmp(file->tensors[i].name, prefix, length) != 0)
            return;
    for (size_t i = 0; i < file->n_tensors; i++)
        file->tensors[i].name += length;
}

size_t safetensors_list(const safetensors *file, const safetensors_tensor **out)
{
    *out = file->tensors;
    return file->n_tensors;
}

const safetensors_tensor *safetensors_lookup(const safetensors *file, const char *name)
{
    for (size_t i = 0; i < file->n_tensors; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

/* "(32, 1, 3, 3)" into out (64 bytes). */
static const char *shape_text(int rank, const int *shape, char *out)
{
    int at = snprintf(out, 64, "(");
    for (int d = 0; d < rank; d++)
        at += snprintf(out + at, 64 - (size_t)at, d == 0 ? "%d" : ", %d", shape[d]);
    snprintf(out + at, 64 - (size_t)at, ")");
    return out;
}

status safetensors_find(const safetensors *file, const char *name, int rank, const int *shape,
                        const float **data)
{
    const safetensors_tensor *tensor = safetensors_lookup(file, name);
    if (tensor == NULL)
        return FAIL(STATUS_INVALID, "%s: has no tensor '%s'; its first of %zu is '%.64s'",
                    file->path, name, file->n_tensors,
                    file->n_tensors > 0 ? file->tensors[0].name : "");
    if (tensor->rank != rank || memcmp(tensor->shape, shape, sizeof *shape * (size_t)rank) != 0) {
        char have[64], want[64];
        return FAIL(STATUS_INVALID, "%s: '%s' has shape %s, expected %s", file->path, name,
                    shape_text(tensor->rank, tensor->shape, have), shape_text(rank, shape, want));
    }
    *data = tensor->data;
    return STATUS_OK;
}

const char *safetensors_path(const safetensors *file)
{
    return file->path;
}

uint64_t safetensors_hash(const safetensors *file)
{
    return file->hash;
}

const char *safetensors_metadata(const safetensors *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}
