// LearningRetention: gives up first the unit that saves the least computation for each byte and
// second.
//
// The chance of a return is learnt (return_model.h) for classes of units: how many requests have
// extended the chain so far, how often it branched where the unit hangs, how long the prompt was
// and how much of it was new. Units of one class and one age wait in one cell, least recently used
// first, so finding a victim means looking at the first unit of the cell with the least worth.
//
// Private to cache_store: callers use MakeRetention.
#ifndef HEARTH_CACHE_STORE_RETENTION_LEARNING_RETENTION_H_
#define HEARTH_CACHE_STORE_RETENTION_LEARNING_RETENTION_H_

#include <memory>

#include "cache_store/retention/retention.h"

namespace hearth {

std::unique_ptr<Retention> MakeLearningRetention(Retention::Depend depend);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_RETENTION_LEARNING_RETENTION_H_
