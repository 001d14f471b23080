#include "base/digest.h"
#include "base/file.h"
#include "base/memory.h"
#include "model/safetensors.h"
#include "model/safetensors_format.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool safetensors_size(const safetensors_tensor *tensor, size_t element_bytes, size_t *size_bytes)
{
    size_t product = element_bytes;
    for (int d = 0; d < tensor->rank; d++)
        if (tensor->shape[d] < 0 || !memory_product(product, (size_t)tensor->shape[d], &product))
            return false;
    *size_bytes = product;
    return true;
}

bool safetensors_printable(const char *name)
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
