// SequenceKv: the engine's interface to one sequence's keys and values, whichever model made them.
//
// Thread safety: none; one thread at a time uses it. Ownership: it owns its memory, or shares it.
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

  // Tokens done.
  virtual int length() const = 0;
  // First position that a layer still holds: 0 for global layers. Local layers keep the rows of the
  // latest step and the W-1 before it readable until the next step or restore.
  virtual int first_held(int layer) const = 0;
  // Bytes of the rows that are done and held, of those from position `from` on.
  virtual uint64_t held_bytes(int from) const = 0;
  // Copies rows [begin, end) of one layer into `slice`, laid out as [K,V][kv_head][token][head_dim]
  // with `slice_tokens` token columns; position t goes to column t - slice_begin. Other columns are
  // left alone. The memory of `slice` is the host's; device memory is copied explicitly.
  // REQUIRES: the rows are held; slice_begin <= begin <= end <= slice_begin + slice_tokens.
  virtual void CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
                       std::byte* slice) const = 0;
  // The bytes of an object of a whole chunk, without a copy; they never change again. Null where
  // its rows are not all done and held, or have another layout. In the device's memory where
  // is_on_device().
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
