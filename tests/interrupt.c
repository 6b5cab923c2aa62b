/* Preloaded into a program and all its children: counts what they do to files below $INTERRUPT_ROOT
   and to the network, and carries out $INTERRUPT at the Nth of these points: "kill N", "die N" (only
   the process that got there), "torn N", "error N ERRNO", "full N", "short 1" or "clock N SECONDS".
   All processes share the count through the file $INTERRUPT_COUNT; each point is a line of the file
   $INTERRUPT_LOG. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static long *count;
static char root[PATH_MAX], what[16];
static long when, value;
static int logged = -1;

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void begin(void) {
    const char *plan = getenv("INTERRUPT"), *file = getenv("INTERRUPT_COUNT");
    if (!plan || !file || !getenv("INTERRUPT_ROOT")) return;
    snprintf(root, sizeof root, "%s/", getenv("INTERRUPT_ROOT"));
    sscanf(plan, "%15s %ld %ld", what, &when, &value);
    int fd = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
    long *shared = mmap(0, 2 * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (getenv("INTERRUPT_LOG"))
        logged = syscall(SYS_openat, AT_FDCWD, getenv("INTERRUPT_LOG"),
                         O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    count = shared == MAP_FAILED ? 0 : shared;
    long nobody = 0;
    if (count) __atomic_compare_exchange_n(&count[1], &nobody, getpid(), 0, __ATOMIC_SEQ_CST,
                                           __ATOMIC_SEQ_CST);
}

static int below(int folder, const char *path) {
    char whole[2 * PATH_MAX], place[32];
    if (path && path[0] == '/') return !strncmp(path, root, strlen(root));
    ssize_t size;
    if (folder == AT_FDCWD) {
        if (syscall(SYS_getcwd, whole, PATH_MAX) < 0) return 0;
        size = strlen(whole);
    } else {
        snprintf(place, sizeof place, "/proc/self/fd/%d", folder);
        if ((size = readlink(place, whole, PATH_MAX)) < 0) return 0;
    }
    snprintf(whole + size, sizeof whole - size, "/%s", path ? path : "");
    return !strncmp(whole, root, strlen(root));
}

/* The number of this point; 0 where nothing is counted. */
static long point(const char *kind, const char *path) {
    long number = __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
    if (logged >= 0) {
        char line[PATH_MAX + 64];
        int size = snprintf(line, sizeof line, "%ld %d %s %s\n", number, getpid(), kind, path);
        syscall(SYS_write, logged, line, size);
    }
    return number;
}

/* The program's first process is the one that a user kills; whichever got here goes with it. */
static void end(int all) {
    if (all) kill(count[1], SIGKILL);
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Whether the point must fail, with errno set; may not return. */
static int strike(long number, int writes, int file) {
    if (!strcmp(what, "kill") && number == when) end(1);
    if (!strcmp(what, "die") && number == when) end(0);
    if (file && !strcmp(what, "error") && number == when) { errno = value; return 1; }
    if (file && writes && !strcmp(what, "full") && number >= when) { errno = ENOSPC; return 1; }
    return 0;
}

static void after(long number) {
    int saved = errno;
    if (!strcmp(what, "torn") && number == when) end(1);
    errno = saved;
}

static const char *socket_or_file(int fd, int *file) {
    struct stat state;
    static __thread char path[PATH_MAX];
    char place[32];
    *file = 0;
    if (!count || fstat(fd, &state)) return 0;
    if (S_ISSOCK(state.st_mode)) {
        int domain = 0;
        socklen_t size = sizeof domain;
        getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
        return domain == AF_INET || domain == AF_INET6 ? "inet" : 0;
    }
    if (!S_ISREG(state.st_mode) && !S_ISDIR(state.st_mode)) return 0;
    snprintf(place, sizeof place, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(place, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    *file = 1;
    return strncmp(path, root, strlen(root)) ? 0 : path;
}

static size_t cut(long number, size_t size) {
    int torn = !strcmp(what, "torn") && number == when;
    return size > 1 && (torn || !strcmp(what, "short")) ? size / 2 : size;
}

#define ON_FD(kind, fd, writes, call)                                       \
    do {                                                                    \
        int file;                                                           \
        const char *path = socket_or_file(fd, &file);                       \
        if (!path) return call;                                             \
        long number = point(file ? kind : "send", path);                    \
        if (strike(number, writes, file)) return -1;                        \
        if (file && writes) size = cut(number, size);                       \
        __typeof__(call) done = call;                                       \
        after(number);                                                      \
        return done;                                                        \
    } while (0)

#define ON_PATH(kind, folder, name, writes, call)                           \
    do {                                                                    \
        if (!count || !below(folder, name)) return call;                    \
        long number = point(kind, name);                                    \
        if (strike(number, writes, 1)) return -1;                           \
        int done = call;                                                    \
        after(number);                                                      \
        return done;                                                        \
    } while (0)

ssize_t write(int fd, const void *data, size_t size) {
    ON_FD("write", fd, 1, REAL(write)(fd, data, size));
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    ON_FD("write", fd, 1, REAL(pwrite64)(fd, data, size, at));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return pwrite64(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int size) {
    ON_FD("write", fd, 1, REAL(writev)(fd, parts, size));
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) {
    ON_FD("write", to, 1, REAL(sendfile)(to, from, at, size));
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    ON_FD("write", to, 1, REAL(sendfile64)(to, from, at, size));
}
ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags) {
    ON_FD("write", to, 1, REAL(copy_file_range)(from, a, to, b, size, flags));
}
int fsync(int fd) { size_t size = 0; ON_FD("sync", fd, size, REAL(fsync)(fd)); }
int fdatasync(int fd) { size_t size = 0; ON_FD("sync", fd, size, REAL(fdatasync)(fd)); }
int ftruncate64(int fd, off64_t size) { ON_FD("truncate", fd, 0, REAL(ftruncate64)(fd, size)); }
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }
ssize_t send(int fd, const void *data, size_t size, int flags) {
    ON_FD("send", fd, 0, REAL(send)(fd, data, size, flags));
}
ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to,
               socklen_t length) {
    ON_FD("send", fd, 0, REAL(sendto)(fd, data, size, flags, to, length));
}
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    size_t size = 0;
    ON_FD("send", fd, size, REAL(sendmsg)(fd, message, flags));
}
int connect(int fd, const struct sockaddr *to, socklen_t size) {
    ON_FD("connect", fd, 0, REAL(connect)(fd, to, size));
}

int rename(const char *from, const char *to) {
    ON_PATH("rename", AT_FDCWD, to, 1, REAL(rename)(from, to));
}
int renameat(int a, const char *from, int b, const char *to) {
    ON_PATH("rename", b, to, 1, REAL(renameat)(a, from, b, to));
}
int unlink(const char *name) { ON_PATH("unlink", AT_FDCWD, name, 0, REAL(unlink)(name)); }
int unlinkat(int folder, const char *name, int flags) {
    ON_PATH("unlink", folder, name, 0, REAL(unlinkat)(folder, name, flags));
}
int rmdir(const char *name) { ON_PATH("rmdir", AT_FDCWD, name, 0, REAL(rmdir)(name)); }
int mkdir(const char *name, mode_t mode) {
    ON_PATH("mkdir", AT_FDCWD, name, 1, REAL(mkdir)(name, mode));
}
int mkdirat(int folder, const char *name, mode_t mode) {
    ON_PATH("mkdir", folder, name, 1, REAL(mkdirat)(folder, name, mode));
}
int link(const char *from, const char *to) {
    ON_PATH("link", AT_FDCWD, to, 1, REAL(link)(from, to));
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    ON_PATH("link", b, to, 1, REAL(linkat)(a, from, b, to, flags));
}
int symlink(const char *to, const char *name) {
    ON_PATH("link", AT_FDCWD, name, 1, REAL(symlink)(to, name));
}
int symlinkat(const char *to, int folder, const char *name) {
    ON_PATH("link", folder, name, 1, REAL(symlinkat)(to, folder, name));
}

static int open_at(int folder, const char *name, int flags, mode_t mode) {
    int (*call)(int, const char *, int, ...) = real("openat64");
    if (!(flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)))) return call(folder, name, flags, mode);
    ON_PATH("create", folder, name, 1, call(folder, name, flags, mode));
}
#define MODE(mode, flags)                                                   \
    mode_t mode = 0;                                                        \
    if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {                                    \
        va_list more;                                                       \
        va_start(more, flags);                                              \
        mode = va_arg(more, mode_t);                                        \
        va_end(more);                                                       \
    }
int open(const char *name, int flags, ...) {
    MODE(mode, flags);
    return open_at(AT_FDCWD, name, flags, mode);
}
int open64(const char *name, int flags, ...) {
    MODE(mode, flags);
    return open_at(AT_FDCWD, name, flags, mode);
}
int openat(int folder, const char *name, int flags, ...) {
    MODE(mode, flags);
    return open_at(folder, name, flags, mode);
}
int openat64(int folder, const char *name, int flags, ...) {
    MODE(mode, flags);
    return open_at(folder, name, flags, mode);
}

static time_t jump(void) {
    return count && !strcmp(what, "clock") && *count >= when ? value : 0;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = REAL(clock_gettime)(clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += jump();
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    int failed = REAL(gettimeofday)(now, zone);
    if (!failed) now->tv_sec += jump();
    return failed;
}
time_t time(time_t *now) {
    time_t seconds = REAL(time)(0) + jump();
    if (now) *now = seconds;
    return seconds;
}
