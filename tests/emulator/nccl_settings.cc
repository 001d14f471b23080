#include "nccl_settings.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>
#include <string>
#include <strings.h>
#include <unistd.h>

namespace emulated
{

namespace
{

const char *const FUNCTIONS[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"};
const char *const ALGORITHMS[] = {"Tree",     "Ring", "CollNetDirect", "CollNetChain", "NVLS",
                                  "NVLSTree", "PAT"};
enum { REDUCE_SCATTER = 3, ALL_REDUCE = 4, N_FUNCTIONS = 5, NVLS = 4, N_ALGORITHMS = 7 };

using matrix = bool[N_FUNCTIONS][N_ALGORITHMS];

template <size_t N> int find(const char *const (&names)[N], const std::string &name)
{
    auto found = std::find_if(std::begin(names), std::end(names),
                              [&](const char *one) { return strcasecmp(one, name.c_str()) == 0; });
    return found == std::end(names) ? -1 : static_cast<int>(found - std::begin(names));
}

/* "ring,tree" or "^nvls", of one function or, -1, of all. */
ncclResult_t read_list(std::string list, int function, matrix &enabled)
{
    bool excludes = !list.empty() && list[0] == '^';
    std::istringstream words(excludes ? list.substr(1) : list);
    bool row[N_ALGORITHMS];
    std::fill(std::begin(row), std::end(row), excludes);
    for (std::string word; std::getline(words, word, ',');) {
        int algorithm = find(ALGORITHMS, word);
        if (algorithm < 0)
            return nccl_failure(ncclInvalidUsage,
                                "Unrecognized element token \"%s\" when parsing "
                                "NCCL_ALGO",
                                word.c_str());
        row[algorithm] = !excludes;
    }
    for (int f = 0; f < N_FUNCTIONS; f++)
        if (function < 0 || function == f)
            std::copy(std::begin(row), std::end(row), enabled[f]);
    return ncclSuccess;
}

/* "ring;allreduce:tree,ring": only the first part may be without a function. */
ncclResult_t read_algorithms(const char *text, matrix &enabled)
{
    std::istringstream parts(text);
    bool first = true;
    for (std::string part; std::getline(parts, part, ';'); first = false) {
        size_t colon = part.find(':');
        int function = colon == std::string::npos ? -1 : find(FUNCTIONS, part.substr(0, colon));
        if (function < 0 && (colon != std::string::npos || !first))
            return nccl_failure(ncclInvalidUsage, "NCCL_ALGO: '%s' names no function",
                                part.c_str());
        std::string list = colon == std::string::npos ? part : part.substr(colon + 1);
        if (ncclResult_t result = read_list(list, function, enabled))
            return result;
    }
    return ncclSuccess;
}

void read_file(const char *path)
{
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        size_t equals = line.find('=');
        if (line.empty() || line[0] == '#' || equals == std::string::npos)
            continue;
        setenv(line.substr(0, equals).c_str(), line.substr(equals + 1).c_str(), 0);
    }
}

std::string expand(const char *pattern)
{
    char host[256] = "";
    std::string text;
    gethostname(host, sizeof host - 1);
    for (const char *c = pattern; *c != '\0'; c++) {
        if (*c != '%' || c[1] == '\0') {
            text += *c;
            continue;
        }
        c++;
        text += *c == '%'   ? "%"
                : *c == 'h' ? std::string(host)
                : *c == 'p' ? std::to_string(getpid())
                            : std::string("%") + *c;
    }
    return text;
}

void begin_log()
{
    const char *level = std::getenv("NCCL_DEBUG"), *path = std::getenv("NCCL_DEBUG_FILE");
    if (level == nullptr || strcasecmp(level, "INFO") != 0)
        return;
    FILE *log = path != nullptr ? std::fopen(expand(path).c_str(), "w") : nullptr;
    std::fprintf(log != nullptr ? log : stdout, "%d NCCL INFO emulated, version %d.%d.%d\n",
                 static_cast<int>(getpid()), NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
    if (log != nullptr)
        std::fclose(log);
}

} // namespace

void nccl_read_settings()
{
    static std::once_flag once;
    std::call_once(once, [] {
        const char *path = std::getenv("NCCL_CONF_FILE");
        if (path != nullptr && path[0] != '\0')
            read_file(path);
        begin_log();
    });
}

ncclResult_t nccl_choose_algorithms(int ranks, nccl_algorithms *out)
{
    matrix enabled;
    std::fill(&enabled[0][0], &enabled[0][0] + N_FUNCTIONS * N_ALGORITHMS, true);
    const char *algo = std::getenv("NCCL_ALGO"), *enable = std::getenv("NCCL_NVLS_ENABLE");
    if (algo != nullptr)
        if (ncclResult_t result = read_algorithms(algo, enabled))
            return result;
    bool there = ranks > 2 && (enable == nullptr || std::strcmp(enable, "0") != 0);
    out->nvls_all_reduce = there && enabled[ALL_REDUCE][NVLS];
    out->nvls_reduce_scatter = there && enabled[REDUCE_SCATTER][NVLS];
    return ncclSuccess;
}

} // namespace emulated
