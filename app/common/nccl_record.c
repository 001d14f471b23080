#include "app/common/nccl_record.h"

#include "app/common/json_value.h"
#include "dist/process_group/backend_choice.h"

#include <stdlib.h>

static json_t *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? json_value_text(value) : json_null();
}

json_t *nccl_record(void)
{
    char version[NCCL_VERSION_BYTES];
    json_t *object = json_object();
    nccl_nvls nvls = nccl_settings_nvls();
    nccl_settings_version(version);
    json_object_set_new(object, "version", json_string(version));
    json_object_set_new(object, "algo", variable("NCCL_ALGO"));
    json_object_set_new(object, "proto", variable("NCCL_PROTO"));
    json_object_set_new(object, "nvls",
                        nvls == NCCL_NVLS_UNKNOWN ? json_null()
                                                  : json_boolean(nvls == NCCL_NVLS_ALLOWED));
    return object;
}
