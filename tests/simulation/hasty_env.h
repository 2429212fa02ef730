// HastyEnv: the file system of another Env, under a clock on which RocksDB never waits.
//
// After a flush that failed RocksDB sleeps for a second of real time, with whoever waits for it.
// Thread safe, as its target, which must outlive it.
#ifndef HEARTH_TESTS_SIMULATION_HASTY_ENV_H_
#define HEARTH_TESTS_SIMULATION_HASTY_ENV_H_

#include <rocksdb/env.h>
#include <rocksdb/system_clock.h>

#include <memory>
#include <thread>

namespace hearth {

class HastyEnv : public rocksdb::EnvWrapper {
 public:
  explicit HastyEnv(rocksdb::Env* target) : EnvWrapper(target) {
    file_system_ = target->GetFileSystem();
    system_clock_ = std::make_shared<HastyClock>(target->GetSystemClock());
  }

 private:
  class HastyClock : public rocksdb::SystemClockWrapper {
   public:
    using SystemClockWrapper::SystemClockWrapper;
    const char* Name() const override { return "HastyClock"; }
    void SleepForMicroseconds(int) override { std::this_thread::yield(); }
  };
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SIMULATION_HASTY_ENV_H_
