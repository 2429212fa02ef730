// ReturnModel: learns from the past how likely units of a class are to be used again.
//
// Each life of a unit, from one use to the next, passes through age buckets. Enter and Return
// count, in tokens, how much reached an age and how much was used at that age, so a unit that never
// returns is evidence from the start. A class with little evidence is blended with coarser classes:
// the probability over all units at that age, times factors for the kind, for kind and fresh
// tokens, and for kind, fresh tokens and length.
//
// Thread safety: none. Holds numbers only, of fixed size (2 MiB).
#ifndef HEARTH_CACHE_STORE_RETENTION_RETURN_MODEL_H_
#define HEARTH_CACHE_STORE_RETENTION_RETURN_MODEL_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace hearth {

class ReturnModel {
 public:
  // Bucket 0 is below one second; each further bucket is sqrt(2) longer; the last begins after 6
  // days.
  static constexpr int kAges = 40;
  static constexpr int kKinds = 32, kFresh = 7, kLengths = 8;
  static constexpr int kClasses = kKinds * kFresh * kLengths;

  ReturnModel();

  static int ClassOf(int kind, int fresh, int length) {
    return (kind * kFresh + fresh) * kLengths + length;
  }
  // Returns the lower edge of a bucket.
  static absl::Duration AgeBegin(int age);
  static int AgeOf(absl::Duration since_use);

  // Enter: `tokens` of a class reached this age. Return: `tokens` were used at this age.
  void Enter(int unit_class, int age, double tokens);
  void Return(int unit_class, int age, double tokens);
  // Updates Worth() from the new counts and lets older counts fade. Takes about 2 us for each class
  // seen, so call it occasionally.
  void Learn();
  // Expected uses per second of keeping a unit, over the best horizon.
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
  Ages base_;     // probability of a use at each age, over all classes
  Ages seconds_;  // width of each bucket
};

// Classes of units: properties that are known when a unit is used and that help to predict its next
// use.

// A boundary with at least this many children says nothing about one conversation: turns are
// counted from here.
inline constexpr uint32_t kHubChildren = 6;

// Class of units that a request adds: the turn of its conversation, the number of branches where
// the chain continues, how much of the prompt is new, and the prompt's length.
int AddedClass(uint32_t turn, uint32_t children, uint32_t fresh_tokens, uint32_t prompt_tokens);
// Classes of units that a request uses: shared with few other requests; with many.
int SharedClass(uint32_t turn, uint32_t prompt_tokens);
int HubClass(uint32_t children);
// Class of units that a request passed: only prompts that branch off there use them.
int PassedClass(uint32_t children, bool by_same_request);
bool IsPassedClass(int unit_class);
// Class of a part of a block.
int RemainderClass();

// Returns 2 * log2 of the tokens per byte.
int DensityOf(uint32_t gain_tokens, uint64_t bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_RETURN_MODEL_H_
