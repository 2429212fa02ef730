// RocksDB rests for a second of real time after a flush that failed, and so does whoever waits for
// it. On a disk that is full for a while of virtual time that is every change that is tried. It
// asks its clock for it, which comes down to this function of the C library's; the program's own
// takes precedence. Not under the sanitizers, which have one themselves: they run few seeds.
#include <sched.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" int HearthNoRest(unsigned) __asm__("usleep");
extern "C" __attribute__((visibility("default"))) int HearthNoRest(unsigned) {
  return sched_yield();
}
#endif
