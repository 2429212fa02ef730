// ReturnModel: learns how likely units of a class are to be used again, depending on their age
// (time since the last use).
//
// A unit's life, from one use to the next, passes through age buckets. Enter() and Return() count,
// in tokens, what reached an age and what was used at this age, so that units that are never used
// again count from the start. If there is little evidence for a class, it is blended with coarser
// classes: with the probability over all units of this age, times factors for the kind, for kind
// and new tokens, and for kind, new tokens and length.
//
// Thread safety: none. Stores only numbers, in 2 MiB.
#ifndef HEARTH_CACHE_STORE_RETENTION_RETURN_MODEL_H_
#define HEARTH_CACHE_STORE_RETENTION_RETURN_MODEL_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace hearth {

class ReturnModel {
 public:
  // Number of age buckets. Bucket 0 is below one second; each further bucket is longer by sqrt(2);
  // the last begins after 6 days.
  static constexpr int kAges = 40;
  static constexpr int kKinds = 32, kFresh = 7, kLengths = 8;
  static constexpr int kClasses = kKinds * kFresh * kLengths;

  ReturnModel();

  static int ClassOf(int kind, int fresh, int length) {
    return (kind * kFresh + fresh) * kLengths + length;
  }
  // Returns the age at which a bucket begins.
  static absl::Duration AgeBegin(int age);
  static int AgeOf(absl::Duration since_use);

  // Enter: counts `tokens` of units of a class that reached this age. Return: counts `tokens` of
  // units that were used at this age.
  void Enter(int unit_class, int age, double tokens);
  void Return(int unit_class, int age, double tokens);
  // Computes Worth() from the counts, and reduces the weight of older counts. Takes about 2 us for
  // each class with counts, so do not call it for each request.
  void Learn();
  // Returns the expected number of uses per second if the unit is kept for the best length of time.
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

  std::vector<bool> seen_;  // for each class: whether the class has counts
  // for each class and age: the tokens that Enter and Return counted; the result of Worth()
  std::vector<Ages> entered_, returned_, worth_;
  std::vector<Evidence> of_kind_, of_fresh_, of_class_;
  Ages base_;     // probability of a use at each age, for all classes together
  Ages seconds_;  // length of each bucket in seconds
};

// Classes of units. A class stands for properties that are known when a unit is used, and that help
// to predict its next use.

// A unit with at least this many children is a hub: many conversations share it, so turns of a
// conversation are counted from here.
inline constexpr uint32_t kHubChildren = 6;

// Returns the class of the units that a request adds. `turn`: turn of the conversation. `children`:
// number of branches where the chain continues. `fresh_tokens`: number of new tokens of the prompt.
int AddedClass(uint32_t turn, uint32_t children, uint32_t fresh_tokens, uint32_t prompt_tokens);
// Return the class of units that a request uses and shares with few (SharedClass) or many
// (HubClass) other requests.
int SharedClass(uint32_t turn, uint32_t prompt_tokens);
int HubClass(uint32_t children);
// Returns the class of units that a request passed because it used a longer unit: only prompts that
// branch off there will use them.
int PassedClass(uint32_t children, bool by_same_request);
bool IsPassedClass(int unit_class);
// Returns the class of a partial block.
int RemainderClass();

// Returns 2 * log2(gain_tokens / bytes).
int DensityOf(uint32_t gain_tokens, uint64_t bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_RETURN_MODEL_H_
