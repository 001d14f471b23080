#include "tests/support/syscall_faults.h"

#include "base/clock.h"
#include "dist/net/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A call and where it has its files: argument `path` is relative to descriptor `fd`; without a path
 * the descriptor is the file. NO: it has none. */
enum { NO = -1, FILES = 2, LOOK_MS = 100, HAND_OVER_MS = 10000 };
typedef struct traced {
    int number;
    const char *name;
    struct {
        int fd, path;
    } files[FILES];
} traced;

#define ON_FD(name) \
    { \
        SYS_##name, #name, \
        { \
            {0, NO}, \
            { \
                NO, NO \
            } \
        } \
    }
#define ON_PATH(name) \
    { \
        SYS_##name, #name, \
        { \
            {NO, 0}, \
            { \
                NO, NO \
            } \
        } \
    }
#define ON_PATHS(name) \
    { \
        SYS_##name, #name, \
        { \
            {NO, 0}, \
            { \
                NO, 1 \
            } \
        } \
    }
#define AT_PATH(name) \
    { \
        SYS_##name, #name, \
        { \
            {0, 1}, \
            { \
                NO, NO \
            } \
        } \
    }
#define AT_PATHS(name) \
    { \
        SYS_##name, #name, \
        { \
            {0, 1}, \
            { \
                2, 3 \
            } \
        } \
    }

static const traced TRACED[] = {
#ifdef SYS_open /* the calls of old, that newer processors do not have */
    ON_PATH(open),       ON_PATH(creat),
    ON_PATH(stat),       ON_PATH(lstat),
    ON_PATH(access),     ON_PATH(mkdir),
    ON_PATH(rmdir),      ON_PATH(unlink),
    ON_PATHS(rename),    ON_PATHS(link),
#endif
#ifdef SYS_renameat
    AT_PATHS(renameat),
#endif
    AT_PATHS(renameat2), AT_PATHS(linkat),
    AT_PATH(openat),     AT_PATH(newfstatat),
    AT_PATH(faccessat),  AT_PATH(mkdirat),
    AT_PATH(unlinkat),   AT_PATH(statx),
    ON_PATH(truncate),   ON_FD(read),
    ON_FD(pread64),      ON_FD(write),
    ON_FD(writev),       ON_FD(pwrite64),
    ON_FD(fsync),        ON_FD(fdatasync),
    ON_FD(ftruncate),    ON_FD(fallocate),
    ON_FD(fstat),        ON_FD(fcntl),
    ON_FD(flock),        ON_FD(getdents64),
    ON_FD(close),        {SYS_copy_file_range, "copy_file_range", {{0, NO}, {2, NO}}},
};
enum { N_TRACED = sizeof TRACED / sizeof TRACED[0] };

/* In the child: makes the filter and hands its listener over; -1 if it is not allowed. */
static int install_filter(int socket_fd)
{
    struct sock_filter code[N_TRACED + 3];
    size_t n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                             (unsigned)offsetof(struct seccomp_data, nr));
    for (int i = 0; i < N_TRACED; i++)
        code[n++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)TRACED[i].number,
                                         (unsigned char)(N_TRACED - i), 0);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    struct sock_fprog filter = {(unsigned short)n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    long listener =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
    if (listener < 0)
        return -1;
    /* From here on every traced call waits for the parent's word. The listener must not live on in
     * the program: its end would never be seen. It is close-on-exec. */
    status st = socket_send_descriptor(socket_fd, (int)listener, clock_deadline_ns(HAND_OVER_MS));
    return st == STATUS_OK ? 0 : -1;
}

/* A string of the process; "" if it cannot be read. */
static void read_string(unsigned pid, unsigned long long address, char *out, size_t size_bytes)
{
    char name[32];
    snprintf(name, sizeof name, "/proc/%u/mem", pid);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : pread(fd, out, size_bytes - 1, (off_t)address);
    out[n > 0 ? n : 0] = '\0'; /* it may end at the end of what is mapped */
    if (fd >= 0)
        close(fd);
}

/* The file of a descriptor of the process; "" if it has none. */
static void read_link(unsigned pid, int fd, char *out, size_t size_bytes)
{
    char name[48];
    snprintf(name, sizeof name, "/proc/%u/fd/%d", pid, fd);
    ssize_t n = readlink(name, out, size_bytes - 1);
    out[n > 0 ? n : 0] = '\0';
}

static bool is_below(const char *path, const char *folder)
{
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* Is the call on a file of the folder? Sets `path` (PATH_MAX) to the one it names, or its folder.
 */
static bool concerns(const traced *call, const struct seccomp_notif *asked, const char *folder,
                     char *path)
{
    for (int i = 0; i < FILES; i++) {
        int fd = call->files[i].fd, at = call->files[i].path;
        path[0] = '\0';
        if (at != NO)
            read_string(asked->pid, asked->data.args[at], path, PATH_MAX);
        if (path[0] != '/' && fd != NO)
            read_link(asked->pid, (int)asked->data.args[fd], path, PATH_MAX);
        if (is_below(path, folder))
            return true;
    }
    return false;
}

/* Counts the call, and says what becomes of it: false if its process is dead. */
static bool decide(const struct seccomp_notif *asked, const syscall_fault *fault,
                   syscall_report *report, struct seccomp_notif_resp *answer)
{
    char path[PATH_MAX];
    const traced *call = TRACED;
    while (call->number != asked->data.nr)
        call++;
    bool counts = (fault->only == NULL || strcmp(fault->only, call->name) == 0) &&
                  concerns(call, asked, fault->folder, path);
    report->calls += counts;
    if (!counts || report->hit || report->calls != fault->at)
        return true;
    report->hit = true;
    snprintf(report->name, sizeof report->name, "%s", call->name);
    snprintf(report->path, sizeof report->path, "%.90s", path + strlen(fault->folder));
    if (fault->error == 0) {
        kill((pid_t)asked->pid, SIGKILL);
        return false;
    }
    answer->flags = 0;
    answer->error = -fault->error;
    return true;
}

/* Until all processes with the filter have ended, or the deadline. */
static void answer_calls(int listener, const program *p, const syscall_fault *fault,
                         int64_t deadline_ns, syscall_report *report)
{
    struct pollfd wanted = {.fd = listener, .events = POLLIN};
    while (!clock_passed(deadline_ns)) {
        siginfo_t ended = {0};
        if (poll(&wanted, 1, LOOK_MS) <= 0 &&
            waitid(P_PID, (id_t)p->pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            ended.si_pid == p->pid)
            return; /* kernels before 5.10 do not say so by themselves */
        if (wanted.revents == 0)
            continue;
        if ((wanted.revents & POLLIN) == 0)
            return;
        struct seccomp_notif asked = {0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0)
            continue; /* whoever asked has been killed */
        struct seccomp_notif_resp answer = {.id = asked.id,
                                            .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        if (decide(&asked, fault, report, &answer))
            (void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

program syscall_faults_run(const char *const *argv, const syscall_fault *fault, int timeout_s,
                           syscall_report *report)
{
    int ends[2] = {-1, -1};
    int64_t deadline_ns = clock_deadline_ns((int64_t)timeout_s * 1000);
    *report = (syscall_report){0};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        abort();
    program p = program_start_after(argv, install_filter, ends[1]);
    close(ends[1]);
    int listener = -1;
    status st = socket_receive_descriptor(ends[0], &listener, deadline_ns);
    close(ends[0]);
    if (st == STATUS_OK) {
        answer_calls(listener, &p, fault, deadline_ns, report);
        close(listener);
    }
    program_wait(&p, clock_passed(deadline_ns) ? 0 : timeout_s);
    return p;
}

bool syscall_faults_allowed(void)
{
    syscall_report report;
    syscall_fault fault = {.folder = "/dev/null", .at = 1, .error = EIO};
    program p = syscall_faults_run((const char *const[]){"sh", "-c", ": < /dev/null", NULL}, &fault,
                                   10, &report);
    bool allowed = report.hit && p.exit_code > 0 && p.exit_code < 127;
    program_close(&p);
    if (!allowed)
        printf("SKIP: this kernel or container lets nobody decide on system calls (seccomp's "
               "notifications, /proc/PID/mem)\n");
    return allowed;
}
