// LearningRetention: evicts first the unit that is expected to save the least computation per byte
// and second.
//
// The probability of a return is learned (return_model.h) per class of units: the number of
// requests that extended the chain, the number of branches at the unit, the length of the prompt,
// and how much of it was new. Units of one class and age are in one cell, least recently used
// first, so a victim is the first unit of the cell with the lowest worth.
//
// Private to cache_store: callers use MakeRetention().
#ifndef HEARTH_CACHE_STORE_RETENTION_LEARNING_RETENTION_H_
#define HEARTH_CACHE_STORE_RETENTION_LEARNING_RETENTION_H_

#include <memory>

#include "cache_store/retention/retention.h"

namespace hearth {

std::unique_ptr<Retention> MakeLearningRetention(Retention::Depend depend);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_LEARNING_RETENTION_H_
