// A library for LD_PRELOAD. In a real store, reads of database files fail or return a wrong bit, as
// on a failing disk; the files do not change. In a real worker, allocations fail.
//
// The environment variable HEARTH_FAULTY_READS names a file of four uint32_t in native byte order,
// which the test may change at any time: (1) how many of a thousand reads get a flipped bit; (2)
// how many of a thousand reads fail with EIO; (3) how many reads were changed so far; (4) aligned
// allocations of this many bytes or more fail; 0: none fails. Applies to reads of whole files and
// of ranges. Thread safe.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Faults {
  std::atomic<uint32_t> flipped_per_mille, failed_per_mille, struck, refused_bytes;
};
static_assert(sizeof(Faults) == 4 * sizeof(uint32_t), "as the test writes it");

Faults* MapFaults() {
  const char* const path = std::getenv("HEARTH_FAULTY_READS");
  const int file = path == nullptr ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* const mapped = ::mmap(nullptr, sizeof(Faults), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return mapped == MAP_FAILED ? nullptr : static_cast<Faults*>(mapped);
}

// Returns the mapped settings file; null if there are no faults.
Faults* TheFaults() {
  static Faults* const faults = MapFaults();
  return faults;
}

// Returns the next pseudo-random number. The sequence is the same in every process.
uint64_t NextNumber() {
  static std::atomic<uint64_t> count{0};
  uint64_t mixed = (count.fetch_add(1) + 1) * 0x9E3779B97F4A7C15u;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
  return mixed ^ mixed >> 31;
}

bool IsOfDatabase(int file) {
  char link[64], path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t bytes = ::readlink(link, path, sizeof(path) - 1);
  if (bytes <= 0) return false;
  path[bytes] = '\0';
  return std::strstr(path, "/db/") != nullptr;
}

// Applies the faults to a read of `bytes` bytes into `buffer`. Returns false if the read must fail.
bool Strike(int file, void* buffer, size_t bytes) {
  const int before = errno;
  Faults* const faults = TheFaults();
  if (faults == nullptr || bytes == 0) return true;
  const uint32_t flipped = faults->flipped_per_mille.load();
  const uint32_t failed = faults->failed_per_mille.load();
  if ((flipped == 0 && failed == 0) || !IsOfDatabase(file)) return errno = before, true;
  errno = before;
  const uint64_t dice = NextNumber() % 1000;
  if (dice < failed) {
    ++faults->struck;
    errno = EIO;
    return false;
  }
  if (dice < failed + flipped) {
    ++faults->struck;
    const uint64_t bit = NextNumber() % (8 * bytes);
    static_cast<unsigned char*>(buffer)[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
  }
  return true;
}

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

// The headers of the C library declare these functions with attributes that differ from these.
__attribute__((visibility("default"))) ssize_t pread(int file, void* buffer, size_t bytes,
                                                     off_t offset) {
  static const auto real = Real<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  const ssize_t read = real(file, buffer, bytes, offset);
  if (read <= 0 || Strike(file, buffer, static_cast<size_t>(read))) return read;
  return -1;
}

__attribute__((visibility("default"))) size_t fread_unlocked(void* buffer, size_t size,
                                                             size_t count, FILE* file) {
  static const auto real = Real<size_t (*)(void*, size_t, size_t, FILE*)>("fread_unlocked");
  const size_t read = real(buffer, size, count, file);
  return Strike(::fileno(file), buffer, size * read) ? read : 0;
}

__attribute__((visibility("default"))) int posix_memalign(void** memory, size_t alignment,
                                                          size_t bytes) {
  static const auto real = Real<int (*)(void**, size_t, size_t)>("posix_memalign");
  Faults* const faults = TheFaults();
  const uint32_t refused = faults == nullptr ? 0 : faults->refused_bytes.load();
  return refused > 0 && bytes >= refused ? ENOMEM : real(memory, alignment, bytes);
}

}  // extern "C"
