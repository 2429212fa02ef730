// SequenceKv: the engine's interface to the keys and values of one sequence, for every kind of
// model.
//
// Thread safety: none; one thread at a time. Ownership: a SequenceKv owns its memory or shares it.
#ifndef HEARTH_WORKER_MODEL_SEQUENCE_KV_H_
#define HEARTH_WORKER_MODEL_SEQUENCE_KV_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "proto/kv_layout.h"

namespace hearth {

// Copies of rows from a device to host memory. The destructor waits until they have ended.
//
// Thread safety: any thread, one thread at a time.
class RowCopies {
 public:
  virtual ~RowCopies() = default;
  // Waits until the copies have ended. Returns false if the device has failed: the copied rows are
  // then undefined.
  virtual bool Wait() = 0;
};

class SequenceKv {
 public:
  virtual ~SequenceKv() = default;

  // Returns the number of tokens whose keys and values are computed.
  virtual int length() const = 0;
  // Returns the first position whose keys and values a layer still has; it is 0 for global layers.
  // A local layer has at least the positions of the latest step and the W-1 positions before that
  // step, until the next step or restore.
  virtual int first_held(int layer) const = 0;
  // Returns the bytes of the computed rows that are still in memory, from position `from` on.
  virtual uint64_t held_bytes(int from) const = 0;
  // Copies the rows of positions [begin, end) of one layer to `slice`, in host memory:
  // [K,V][kv_head][token][head_dim] with `slice_tokens` tokens. Position t is copied to token index
  // t - slice_begin; other tokens are unchanged. Rows in device memory are copied too. REQUIRES:
  // first_held(layer) <= begin; slice_begin <= begin <= end <= slice_begin + slice_tokens.
  virtual void CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
                       std::byte* slice) const = 0;
  // Returns the bytes of an object that covers a whole chunk, without copying; the bytes never
  // change. Returns null if some of its rows are not computed, are no longer in memory, or have
  // another layout. If is_on_device() and not IsOffloaded(id), the address is in device memory.
  virtual std::shared_ptr<std::byte[]> Share(const ObjectId& id) const {
    (void)id;
    return nullptr;
  }

  virtual bool is_on_device() const { return false; }
  // Returns whether the bytes of an object that covers a whole chunk are in host memory, although
  // is_on_device().
  virtual bool IsOffloaded(const ObjectId& id) const {
    (void)id;
    return false;
  }
  // Starts copying the rows of positions [begin, end) to an object's `bytes`, in host memory, as
  // CopyOut does for each layer of the object's group. The copies run during later steps. `bytes`
  // must live until they have ended. REQUIRES: is_on_device(); [begin, end) is inside the object.
  virtual std::unique_ptr<RowCopies> StartCopyOut(const ObjectId& id, int begin, int end,
                                                  std::byte* bytes) const {
    (void)id, (void)begin, (void)end, (void)bytes;
    return nullptr;
  }

 protected:
  SequenceKv() = default;
  SequenceKv(SequenceKv&&) = default;
  SequenceKv& operator=(SequenceKv&&) = default;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_SEQUENCE_KV_H_
