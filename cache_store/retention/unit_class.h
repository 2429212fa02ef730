// Classes of units: what can be known of a unit when it is used, that says something about whether
// it will be used again. Private to cache_store. Pure functions.
#ifndef HEARTH_CACHE_STORE_RETENTION_UNIT_CLASS_H_
#define HEARTH_CACHE_STORE_RETENTION_UNIT_CLASS_H_

#include <cstdint>

namespace hearth {

// A boundary that so many went on from tells nothing about one conversation: turns count from it.
inline constexpr uint32_t kHubChildren = 6;

// Of units that a request adds: the turn of its conversation, how many ways the chain took where it
// hangs, how much of the prompt is new, and how long the prompt is.
int AddedClass(uint32_t turn, uint32_t children, uint32_t fresh_tokens, uint32_t prompt_tokens);
// Of those that it uses and shares with few others; with many.
int SharedClass(uint32_t turn, uint32_t prompt_tokens);
int HubClass(uint32_t children);
// Of those that it went past: used only by prompts that branch off there.
int PassedClass(uint32_t children, bool by_same_request);
bool IsPassedClass(int unit_class);
// Of a part of a block.
int RemainderClass();

// Tokens for each byte, log2 in halves.
int DensityOf(uint32_t gain_tokens, uint64_t bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_UNIT_CLASS_H_
