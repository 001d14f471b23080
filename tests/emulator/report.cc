/* What the emulated device says: fatal messages, counts of calls, injected failures, leaks. */
#include "runtime.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <pthread.h>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

namespace emulated
{

namespace
{

struct injection {
    std::string name;
    unsigned long nth;
    int code;
};

struct accounts {
    std::mutex lock;
    std::map<std::string, unsigned long> calls;
    std::map<std::pair<std::string, std::string>, unsigned long> work; /* where, name */
    std::map<std::string, long> live;
    std::vector<injection> injections;
};

std::atomic<bool> forked{false};

/* Never destroyed: the device thread may still run while the process ends. */
accounts &books()
{
    static accounts *all = new accounts;
    return *all;
}

std::vector<injection> parse_injections(const char *text)
{
    std::vector<injection> all;
    std::string rest = text;
    while (!rest.empty()) {
        size_t comma = rest.find(',');
        std::string one = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        char name[64];
        unsigned long nth;
        int code, length = 0;
        if (std::sscanf(one.c_str(), "%63[^:]:%lu:%d%n", name, &nth, &code, &length) != 3 ||
            one[static_cast<size_t>(length)] != '\0' || nth == 0 || code == 0)
            fatal("MNIST_DDP_EMULATED_FAIL: '%s' is not name:nth:code", one.c_str());
        all.push_back({name, nth, code});
    }
    return all;
}

/* To the file that the variable names, if it names one. */
void append(const char *variable, const std::string &text)
{
    const char *path = std::getenv(variable);
    if (path == nullptr || *path == '\0')
        return;
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0 || write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        std::fprintf(stderr, "emulated device: %s: %s\n", path, std::strerror(errno));
    if (file >= 0)
        close(file);
}

void write_counts(const accounts &all)
{
    std::string calls, work;
    for (const auto &[name, count] : all.calls)
        calls += name + " " + std::to_string(count) + "\n";
    for (const auto &[what, count] : all.work)
        work += what.first + " " + std::to_string(count) + " " + what.second + "\n";
    append("MNIST_DDP_EMULATED_TRACE", calls);
    append("MNIST_DDP_EMULATED_WORK", work);
}

/* At the end of the process. */
void settle(int status, void *)
{
    if (forked.load())
        return;
    accounts &all = books();
    bool leaked = false;
    {
        std::lock_guard<std::mutex> hold(all.lock);
        write_counts(all);
        for (const auto &[kind, count] : all.live) {
            if (count == 0)
                continue;
            std::fprintf(stderr, "emulated device: leaked %ld x %s\n", count, kind.c_str());
            leaked = true;
        }
    }
    const char *strict = std::getenv("MNIST_DDP_EMULATED_STRICT");
    if (leaked && status == 0 && strict != nullptr && std::strcmp(strict, "1") == 0) {
        std::fflush(nullptr);
        _exit(99);
    }
}

void begin_process()
{
    if (const char *text = std::getenv("MNIST_DDP_EMULATED_FAIL"))
        books().injections = parse_injections(text);
    pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
    on_exit(settle, nullptr);
}

} // namespace

void fatal(const char *format, ...)
{
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "emulated device: %s%s (seed %llu)\n", message, where_on_device(),
                 static_cast<unsigned long long>(seed()));
    std::abort();
}

int entry_point(const char *name)
{
    static std::once_flag begun;
    std::call_once(begun, begin_process);
    if (forked.load())
        fatal("%s: called in a child of the process that began to use the device", name);
    accounts &all = books();
    std::lock_guard<std::mutex> hold(all.lock);
    unsigned long nth = ++all.calls[name];
    for (const injection &i : all.injections)
        if (i.nth == nth && i.name == name)
            return i.code;
    return 0;
}

void count_work(const char *where, const char *name)
{
    accounts &all = books();
    std::lock_guard<std::mutex> hold(all.lock);
    all.work[{where, name}]++;
}

void account(const char *kind, int change)
{
    accounts &all = books();
    std::lock_guard<std::mutex> hold(all.lock);
    all.live[kind] += change;
}

unsigned long long environment_number(const char *name, unsigned long long otherwise,
                                      unsigned long long least, unsigned long long most)
{
    const char *text = std::getenv(name);
    if (text == nullptr || *text == '\0')
        return otherwise;
    char *end;
    errno = 0;
    unsigned long long number = std::strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || *text == '-' || number < least || number > most)
        fatal("%s=%s is not a number from %llu to %llu", name, text, least, most);
    return number;
}

uint64_t seed()
{
    static const uint64_t value = [] {
        const char *text = std::getenv("MNIST_DDP_EMULATED_SEED");
        return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
    }();
    return value;
}

uint32_t random_below(uint32_t count)
{
    static uint64_t state = seed() * 0x9E3779B97F4A7C15u + 0x2545F4914F6CDD1Du;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    uint64_t mixed = (state * 0x2545F4914F6CDD1Du) >> 32;
    return static_cast<uint32_t>((mixed * count) >> 32);
}

} // namespace emulated
