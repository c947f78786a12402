// Counts what processes do to the files below a folder, and does harm at one of these points.
//
// Loaded before all other libraries (LD_PRELOAD), so that it sees every library's files: Python's, torch's, SQLite's, git's.
// The environment says what to do, and is read again by torture_arm, which a forked process calls:
//   TORTURE_ROOT   the folder          TORTURE_KIND  the harm, as in `harm` below; none: only count
//   TORTURE_SEEN   a file that gets a line for each point: process, its program, number, operation, path
//   TORTURE_AT     number of the point in its process, from 1
//   TORTURE_WHO    the program that is harmed, or "main": the process with the id TORTURE_MAIN
//   TORTURE_FIRED  a file that is made when the harm is done, with the line of its point; what lasts is over when there is
//                  another one, with .over at the end of its name
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <atomic>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

extern "C" char* program_invocation_short_name;

namespace {

struct Plan {
  std::string root, kind, seen, fired, who;
  long at = 0, main_process = 0;
};
Plan* plan = nullptr;  // never removed: other libraries write files before this one begins and after it ends
std::atomic<long> count{0};
std::atomic<bool> done{false};

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

template <typename F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static auto next_##name = next<decltype(&name)>(#name)

// The path of a file, absolute where the system can tell; the last part need not exist.
std::string place(int folder, const char* path) {
  if (path[0] == '/') return path;
  char link[64], where[PATH_MAX];
  if (folder == AT_FDCWD)
    snprintf(link, sizeof link, "/proc/self/cwd");
  else
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
  ssize_t length = readlink(link, where, sizeof where - 1);
  if (length < 0) return path;
  return std::string(where, length) + "/" + path;
}

std::string place(int file) {
  char link[64], where[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, where, sizeof where - 1);
  return length < 0 ? "" : std::string(where, length);
}

// Write a line; whether the file could be opened.
bool say(const std::string& file, int flags, const std::string& line) {
  long descriptor = syscall(SYS_openat, AT_FDCWD, file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
  if (descriptor < 0) return false;
  syscall(SYS_write, descriptor, line.c_str(), line.size());
  syscall(SYS_close, descriptor);
  return true;
}

bool is(const char* kind) { return plan && plan->kind == kind; }

bool lasts() { return is("full") || is("readonly") || is("clock"); }

// Whether the harm was done, and lasts: to all processes, as a full disk does.
bool goes_on() {
  if (lasts() && access((plan->fired + ".over").c_str(), F_OK) == 0) return false;
  return lasts() && (done || (done = access(plan->fired.c_str(), F_OK) == 0));
}

// Whether the harm is to be done now, and only once among all processes; what lasts is done again and again.
bool strikes(const std::string& line, long number) {
  if (plan->at == 0) return false;
  if (goes_on()) return true;
  if (done) return false;
  bool main = getpid() == plan->main_process;
  if (plan->who == "main" ? !main : main || plan->who != program_invocation_short_name) return false;
  if (number < plan->at) return false;
  // Of several threads that come here at once, one makes the file.
  if (!say(plan->fired, O_EXCL, line)) return false;
  done = true;
  return true;
}

void limit_memory() {
  long pages = 0;
  FILE* status = fopen("/proc/self/statm", "r");
  if (!status || fscanf(status, "%ld", &pages) != 1) abort();
  fclose(status);
  rlim_t bytes = static_cast<rlim_t>(pages) * sysconf(_SC_PAGESIZE) + (rlim_t{1} << 20);
  rlimit limit{bytes, bytes};
  setrlimit(RLIMIT_AS, &limit);
}

// Count a point; return the error with which the operation shall fail, 0 for none, or −1 if it shall be done by half.
int point(const char* operation, const std::string& path, bool grows, bool half = false) {
  if (!plan || plan->root.empty() || path.compare(0, plan->root.size() + 1, plan->root + "/") != 0) return 0;
  int before = errno;
  long number = ++count;
  std::string line = std::to_string(getpid()) + "\t" + (getpid() == plan->main_process ? "main" : program_invocation_short_name) +
                     "\t" + std::to_string(number) + "\t" + operation + "\t" + path.substr(plan->root.size() + 1) + "\n";
  if (!plan->seen.empty()) say(plan->seen, O_APPEND, line);
  int error = 0;
  if (strikes(line, number)) {
    if (is("torn") && half) {
      error = -1;
    } else if (is("kill") || is("torn")) {
      kill(getpid(), SIGKILL);
      pause();
    } else if (is("end")) {
      kill(getpid(), SIGTERM);
    } else if (is("interrupt")) {
      kill(getpid(), SIGINT);
    } else if (is("stop")) {
      kill(getpid(), SIGSTOP);
    } else if (is("memory")) {
      limit_memory();
    } else if (is("full") && grows) {
      error = ENOSPC;
    } else if (is("readonly") && strcmp(operation, "write") != 0) {
      error = EROFS;
    }
  }
  errno = before;
  return error;
}

// Note a file that is read, where points are noted.
void look(const std::string& path) {
  if (!plan || plan->seen.empty() || path.compare(0, plan->root.size() + 1, plan->root + "/") != 0) return;
  say(plan->seen, O_APPEND, std::to_string(getpid()) + "\tmain\t0\tread\t" + path.substr(plan->root.size() + 1) + "\n");
}

bool fails(int error) {
  if (error > 0) errno = error;
  return error > 0;
}

[[noreturn]] void die() {
  for (;;) {
    kill(getpid(), SIGKILL);
    pause();
  }
}

bool writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || flags & O_CREAT; }

template <typename Count>
Count smaller(Count size) {
  return size / 2;
}

}  // namespace

extern "C" void torture_arm() {
  auto* found = new Plan{variable("TORTURE_ROOT"), variable("TORTURE_KIND"), variable("TORTURE_SEEN"), variable("TORTURE_FIRED"),
                         variable("TORTURE_WHO"), atol(variable("TORTURE_AT").c_str()), atol(variable("TORTURE_MAIN").c_str())};
  count = 0;
  done = false;
  plan = found;
  goes_on();
}

__attribute__((constructor)) static void start() { torture_arm(); }

// What opens files. A missing one that is only read is no point: programs look for many.

#define OPEN(name)                                                                              \
  extern "C" int name(const char* path, int flags, ...) {                                       \
    NEXT(name);                                                                                 \
    va_list more;                                                                               \
    va_start(more, flags);                                                                      \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                     \
    va_end(more);                                                                               \
    std::string where = place(AT_FDCWD, path);                                                  \
    if (!writes(flags))                                                                         \
      look(where);                                                                              \
    else if (fails(point("open", where, flags & O_CREAT && access(path, F_OK) != 0)))           \
      return -1;                                                                                \
    return next_##name(path, flags, mode);                                                      \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                            \
  extern "C" int name(int folder, const char* path, int flags, ...) {                           \
    NEXT(name);                                                                                 \
    va_list more;                                                                               \
    va_start(more, flags);                                                                      \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                     \
    va_end(more);                                                                               \
    std::string where = place(folder, path);                                                    \
    if (!writes(flags))                                                                         \
      look(where);                                                                              \
    else if (fails(point("open", where, flags & O_CREAT)))                                      \
      return -1;                                                                                \
    return next_##name(folder, path, flags, mode);                                              \
  }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                             \
  extern "C" FILE* name(const char* path, const char* mode) {                                   \
    NEXT(name);                                                                                 \
    std::string where = place(AT_FDCWD, path);                                                  \
    if (!strpbrk(mode, "wa+"))                                                                  \
      look(where);                                                                              \
    else if (fails(point("open", where, access(path, F_OK) != 0)))                              \
      return nullptr;                                                                           \
    return next_##name(path, mode);                                                             \
  }
FOPEN(fopen)
FOPEN(fopen64)

// What writes to open files, wholly or by half.

extern "C" ssize_t write(int file, const void* data, size_t size) {
  NEXT(write);
  int error = point("write", place(file), true, size > 1);
  if (fails(error)) return -1;
  if (error == 0) return next_write(file, data, size);
  next_write(file, data, smaller(size));
  die();
}

extern "C" ssize_t writev(int file, const iovec* parts, int number) {
  NEXT(writev);
  int error = point("write", place(file), true, number > 0);
  if (fails(error)) return -1;
  if (error == 0) return next_writev(file, parts, number);
  syscall(SYS_write, file, parts[0].iov_base, smaller(parts[0].iov_len));
  die();
}

#define PWRITE(name, offset_type)                                                               \
  extern "C" ssize_t name(int file, const void* data, size_t size, offset_type offset) {        \
    NEXT(name);                                                                                 \
    int error = point("write", place(file), true, size > 1);                                    \
    if (fails(error)) return -1;                                                                \
    if (error == 0) return next_##name(file, data, size, offset);                               \
    next_##name(file, data, smaller(size), offset);                                             \
    die();                                                                                      \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define SENDFILE(name, offset_type)                                                             \
  extern "C" ssize_t name(int out, int in, offset_type* offset, size_t size) {                  \
    NEXT(name);                                                                                 \
    int error = point("write", place(out), true, true);                                         \
    if (fails(error)) return -1;                                                                \
    if (error == 0) return next_##name(out, in, offset, size);                                  \
    struct stat status{};                                                                       \
    fstat(in, &status);                                                                         \
    next_##name(out, in, offset, smaller(static_cast<size_t>(status.st_size)));                 \
    die();                                                                                      \
  }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

// What changes names.

extern "C" int rename(const char* from, const char* to) {
  NEXT(rename);
  return fails(point("rename", place(AT_FDCWD, to), false)) ? -1 : next_rename(from, to);
}

extern "C" int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  NEXT(renameat);
  return fails(point("rename", place(to_folder, to), false)) ? -1 : next_renameat(from_folder, from, to_folder, to);
}

extern "C" int link(const char* from, const char* to) {
  NEXT(link);
  return fails(point("link", place(AT_FDCWD, to), true)) ? -1 : next_link(from, to);
}

extern "C" int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  NEXT(linkat);
  if (fails(point("link", place(to_folder, to), true))) return -1;
  return next_linkat(from_folder, from, to_folder, to, flags);
}

extern "C" int unlink(const char* path) {
  NEXT(unlink);
  return fails(point("unlink", place(AT_FDCWD, path), false)) ? -1 : next_unlink(path);
}

extern "C" int unlinkat(int folder, const char* path, int flags) {
  NEXT(unlinkat);
  return fails(point("unlink", place(folder, path), false)) ? -1 : next_unlinkat(folder, path, flags);
}

extern "C" int rmdir(const char* path) {
  NEXT(rmdir);
  return fails(point("rmdir", place(AT_FDCWD, path), false)) ? -1 : next_rmdir(path);
}

extern "C" int mkdir(const char* path, mode_t mode) {
  NEXT(mkdir);
  return fails(point("mkdir", place(AT_FDCWD, path), access(path, F_OK) != 0)) ? -1 : next_mkdir(path, mode);
}

extern "C" int mkdirat(int folder, const char* path, mode_t mode) {
  NEXT(mkdirat);
  return fails(point("mkdir", place(folder, path), true)) ? -1 : next_mkdirat(folder, path, mode);
}

extern "C" int fsync(int file) {
  NEXT(fsync);
  return fails(point("fsync", place(file), false)) ? -1 : next_fsync(file);
}

extern "C" int fdatasync(int file) {
  NEXT(fdatasync);
  return fails(point("fsync", place(file), false)) ? -1 : next_fdatasync(file);
}

// A full disk says so when it is asked; a clock that was set back shows yesterday.

#define STATVFS(name, type)                                                                     \
  extern "C" int name(const char* path, type* found) {                                          \
    NEXT(name);                                                                                 \
    int status = next_##name(path, found);                                                      \
    if (status == 0 && plan && is("full") && goes_on()) found->f_bavail = found->f_bfree = 0;                \
    return status;                                                                              \
  }
STATVFS(statvfs, struct statvfs)
STATVFS(statvfs64, struct statvfs64)

namespace {
constexpr time_t DAY = 24 * 60 * 60;
bool set_back() { return done && is("clock"); }
}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) {
  NEXT(clock_gettime);
  int status = next_clock_gettime(clock, now);
  if (status == 0 && clock == CLOCK_REALTIME && set_back()) now->tv_sec -= DAY;
  return status;
}

extern "C" int gettimeofday(timeval* now, void* zone) {
  NEXT(gettimeofday);
  int status = next_gettimeofday(now, zone);
  if (status == 0 && set_back()) now->tv_sec -= DAY;
  return status;
}

extern "C" time_t time(time_t* now) {
  NEXT(time);
  time_t found = next_time(nullptr) - (set_back() ? DAY : 0);
  if (now) *now = found;
  return found;
}
