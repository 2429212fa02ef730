// After a failed flush, RocksDB sleeps for a second of real time, and all threads that wait for the
// flush wait too. On a disk that is full in virtual time, that is after every change. RocksDB
// sleeps by usleep of the C library; this definition in the program takes precedence and only
// yields. Not under the sanitizers, which have their own usleep: they run few seeds.
#include <sched.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" int HearthNoRest(unsigned) __asm__("usleep");
extern "C" __attribute__((visibility("default"))) int HearthNoRest(unsigned) {
  return sched_yield();
}
#endif
