// Transfers: copies between host memory and KV blocks that run while a device runs steps, and the
// memory that they use.
//
// Thread safety: none for Copy and Record; Wait and the destructor may be called from any thread.
// Ownership: keeps the given memory until all its transfers have ended: the destructor waits.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_TRANSFERS_H_
#define HEARTH_WORKER_MODEL_INVARIANT_TRANSFERS_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "worker/model/invariant/block_memory.h"
#include "worker/model/sequence_kv.h"

namespace hearth {

class Transfers : public RowCopies {
 public:
  // The transfers begin after all steps so far have ended. `memory` must be on a device.
  explicit Transfers(BlockMemory* memory) : device_(memory->device()) {
    device_->MakeTransfersWait();
  }
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;
  ~Transfers() override { Wait(); }

  // Starts copies, as BlockMemory::Copy copies.
  void Copy(CopyWay way, std::byte* to, const std::byte* from, const CopyRuns& runs) {
    device_->StartTransfer(way, to, from, runs);
  }
  void Keep(std::shared_ptr<const void> memory) { kept_.push_back(std::move(memory)); }
  // Records an event after the copies so far. Returns its index: 0, 1, ... REQUIRES: the last copy
  // is followed by a Record.
  void Record() { events_.push_back(device_->RecordTransfers()); }
  // Makes later steps wait for the event with this index.
  void MakeStepsWait(size_t event) const { device_->MakeLaunchesWait(*events_.at(event)); }
  // Waits until all copies have ended. Returns false if the device has failed.
  bool Wait() override { return events_.empty() || events_.back()->Wait(); }

 private:
  const std::shared_ptr<Device> device_;
  std::vector<std::shared_ptr<const void>> kept_;
  std::vector<std::shared_ptr<DeviceEvent>> events_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_TRANSFERS_H_
