// Replaces usleep of the C library by a function that only yields the processor. After a failed
// flush, RocksDB sleeps for a second of real time by usleep, and all threads that wait for the
// flush wait too. In a simulation with a full disk that would happen after every change. Not under
// the sanitizers, which replace usleep themselves and run few seeds.
#include <sched.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" int HearthNoRest(unsigned) __asm__("usleep");
extern "C" __attribute__((visibility("default"))) int HearthNoRest(unsigned) {
  return sched_yield();
}
#endif
