#include "kernels/cuda/conv_descriptor.h"

#include <stddef.h>

void conv_descriptor_destroy(cudnnBackendDescriptor_t descriptor)
{
    if (descriptor != NULL)
        (void)CUDNN_CALL(cudnnBackendDestroyDescriptor(descriptor));
}

status conv_descriptor_make(cudnnBackendDescriptorType_t type, const conv_attribute *attributes,
                            int count, cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t made = NULL;
    TRY(CUDNN_CALL(cudnnBackendCreateDescriptor(type, &made)));
    status st = STATUS_OK;
    for (int i = 0; i < count && st == STATUS_OK; i++) {
        const conv_attribute *a = &attributes[i];
        if (a->count == 0)
            continue;
        st = CUDNN_CALL(cudnnBackendSetAttribute(made, a->name, a->type, a->count, a->value));
        if (st != STATUS_OK)
            st = status_context(st, "attribute %d", (int)a->name);
    }
    if (st == STATUS_OK)
        st = CUDNN_CALL(cudnnBackendFinalize(made));
    if (st != STATUS_OK) {
        st = status_context(st, "descriptor of type %d", (int)type);
        conv_descriptor_destroy(made);
        return st;
    }
    *out = made;
    return STATUS_OK;
}
