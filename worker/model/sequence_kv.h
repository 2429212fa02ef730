// SequenceKv: the engine's interface to one sequence's keys and values, for every kind of model.
//
// Thread safety: none; one thread at a time. Ownership: it owns its memory, or shares it.
#ifndef HEARTH_WORKER_MODEL_SEQUENCE_KV_H_
#define HEARTH_WORKER_MODEL_SEQUENCE_KV_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "proto/kv_layout.h"

namespace hearth {

class SequenceKv {
 public:
  virtual ~SequenceKv() = default;

  // The number of tokens that are done.
  virtual int length() const = 0;
  // Returns the first position that a layer holds: 0 for global layers. Local layers keep the rows
  // of the latest step and the W-1 rows before it readable until the next step or restore.
  virtual int first_held(int layer) const = 0;
  // Returns the bytes of done and held rows from position `from` on.
  virtual uint64_t held_bytes(int from) const = 0;
  // Copies rows [begin, end) of one layer into `slice`: [K,V][kv_head][token][head_dim] with
  // `slice_tokens` token columns; position t goes to column t - slice_begin. Other columns are
  // unchanged. `slice` is host memory; device memory is copied. REQUIRES: the rows are held;
  // slice_begin <= begin <= end <= slice_begin + slice_tokens.
  virtual void CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
                       std::byte* slice) const = 0;
  // Returns the bytes of an object of a whole chunk without a copy; they never change. Null if its
  // rows are not all done and held, or have another layout. In device memory if is_on_device().
  virtual std::shared_ptr<std::byte[]> Share(const ObjectId& id) const {
    (void)id;
    return nullptr;
  }

  virtual bool is_on_device() const { return false; }

 protected:
  SequenceKv() = default;
  SequenceKv(SequenceKv&&) = default;
  SequenceKv& operator=(SequenceKv&&) = default;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_SEQUENCE_KV_H_
