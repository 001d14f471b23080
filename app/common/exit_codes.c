#include "app/common/exit_codes.h"

#include "base/log.h"

int exit_code_failed(status st, int otherwise)
{
    LOG_E("%s", status_text());
    if (st == STATUS_TIMEOUT && otherwise != EXIT_CODE_RENDEZVOUS)
        return EXIT_CODE_TIMEOUT;
    if (st == STATUS_NO_MODULE)
        return EXIT_CODE_USAGE;
    if (st == STATUS_NO_MEMORY || st == STATUS_DEVICE)
        return EXIT_CODE_INTERNAL;
    return st == STATUS_PEER || st == STATUS_REFUSED ? EXIT_CODE_PEER : otherwise;
}
