// InvariantGemma: Gemma 3's forward pass on the kernels of worker/kernels: a row's bits depend on
// its tokens alone, not on the step it came in, on prefill or decode, nor on the number of threads.
//
// On the CPU, in float32, with weights in the bits that they are stored in. Not served yet: the
// engine drives Gemma (gemma.h); this is what takes its place there for the class `invariant`.
//
// Thread safety: const methods from any thread, one Step at a time. Owns its weights; the files of
// the model stay mapped.
#ifndef HEARTH_WORKER_INVARIANT_GEMMA_H_
#define HEARTH_WORKER_INVARIANT_GEMMA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/model_config.h"

namespace hearth {

class InvariantGemma {
 public:
  struct Rep;
  // The most logits that a step gives: 1 GiB of them.
  static constexpr int64_t kStepLogitsMax = int64_t{1} << 28;
  // A sequence's keys and values, in blocks of `chunk` tokens: slices, as they are stored. Of the
  // model whose NewKv made it; once moved from, of none.
  class Kv {
   public:
    Kv();
    Kv(Kv&&) noexcept;
    ~Kv();
    int length() const { return length_; }

   private:
    friend struct Rep;
    friend class InvariantGemma;
    struct Layer;
    std::vector<Layer> layers_;
    int length_ = 0;
    uint64_t model_ = 0;  // its number; 0: none
  };

  // `chunk`: C, a multiple of 16 up to 1024. Errors name the file, tensor or field.
  static absl::StatusOr<std::unique_ptr<InvariantGemma>> Load(const std::string& model_dir,
                                                              int threads, int chunk);
  ~InvariantGemma();

  const ModelConfig& config() const;
  Kv NewKv() const;
  // Appends the tokens. `logits` receives those of the last `want` of them: [want][vocab]; may be
  // null where none are wanted. kInvalidArgument, with nothing changed, where the text would be
  // longer than the model's max_position_embeddings, a token or the Kv is not of this model, or
  // more is wanted than there is or than kStepLogitsMax.
  absl::Status Step(Kv* kv, absl::Span<const int32_t> tokens, int want,
                    std::vector<float>* logits) const;

 private:
  explicit InvariantGemma(std::unique_ptr<Rep> rep);
  std::unique_ptr<Rep> rep_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_INVARIANT_GEMMA_H_
