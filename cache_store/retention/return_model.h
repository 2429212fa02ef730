// ReturnModel: how likely units of a class are to be used again, learnt from the past.
//
// Every life of a unit, from one use to the next, is followed through age buckets. Enter and Return
// count, in tokens, how much came to an age and how much was used there, so that a unit that never
// returns is evidence from the start. A class with little evidence is blended with coarser ones:
// the chance of all units at that age, times a factor for the kind, for kind and fresh tokens, for
// kind, fresh tokens and length.
//
// Thread safety: none. Holds numbers only; its size is fixed (2 MiB).
#ifndef HEARTH_CACHE_STORE_RETENTION_RETURN_MODEL_H_
#define HEARTH_CACHE_STORE_RETENTION_RETURN_MODEL_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace hearth {

class ReturnModel {
 public:
  // Bucket 0 is below a second, each further one sqrt(2) longer; the last begins after 6 days.
  static constexpr int kAges = 40;
  static constexpr int kKinds = 32, kFresh = 7, kLengths = 8;
  static constexpr int kClasses = kKinds * kFresh * kLengths;

  ReturnModel();

  static int ClassOf(int kind, int fresh, int length) {
    return (kind * kFresh + fresh) * kLengths + length;
  }
  // Lower edge of a bucket.
  static absl::Duration AgeBegin(int age);
  static int AgeOf(absl::Duration since_use);

  // `tokens` of a class came to this age; were used at this age.
  void Enter(int unit_class, int age, double tokens);
  void Return(int unit_class, int age, double tokens);
  // Takes the new counts into Worth and lets older ones fade: about 2 us for each class seen, so
  // call it now and then.
  void Learn();
  // Expected uses for each second of being kept, over the best horizon.
  double Worth(int unit_class, int age) const { return worth_[unit_class][age]; }

 private:
  using Ages = std::array<double, kAges>;
  struct Evidence {
    double returned = 0, expected = 0;
  };
  void Fade();
  void LearnBase();
  void SumEvidence();
  void LearnClass(int unit_class);

  std::vector<bool> seen_;                        // by class
  std::vector<Ages> entered_, returned_, worth_;  // by class
  std::vector<Evidence> of_kind_, of_fresh_, of_class_;
  Ages base_;     // chance of a use at each age, over all classes
  Ages seconds_;  // width of each bucket
};

// Classes of units: properties known when a unit is used that help to tell whether it will be used
// again (unit_class.cc).

// A boundary with so many children tells nothing about one conversation: turns count from it.
inline constexpr uint32_t kHubChildren = 6;

// Of units that a request adds: the turn of its conversation, the number of branches where the
// chain continues, how much of the prompt is new, and how long the prompt is.
int AddedClass(uint32_t turn, uint32_t children, uint32_t fresh_tokens, uint32_t prompt_tokens);
// Of units that a request uses and shares with few others; with many.
int SharedClass(uint32_t turn, uint32_t prompt_tokens);
int HubClass(uint32_t children);
// Of units that a request went past: used only by prompts that branch off there.
int PassedClass(uint32_t children, bool by_same_request);
bool IsPassedClass(int unit_class);
// Of a part of a block.
int RemainderClass();

// Tokens for each byte, log2 in halves.
int DensityOf(uint32_t gain_tokens, uint64_t bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_RETURN_MODEL_H_
