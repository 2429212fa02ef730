// RocksDB sleeps for a second of real time after a failed flush, and with it every thread that
// waits for it. On a disk that is full for a while of virtual time that is every change. It sleeps
// by this function of the C library; the program's own version takes precedence. Not under the
// sanitizers, which have their own version: they run few seeds.
#include <sched.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" int HearthNoRest(unsigned) __asm__("usleep");
extern "C" __attribute__((visibility("default"))) int HearthNoRest(unsigned) {
  return sched_yield();
}
#endif
