// LearningRetention: the default eviction policy. It evicts first the unit that is expected to save
// the least computation per byte and second.
//
// The policy learns how likely units of a class are to be used again (return_model.h). The class
// depends on the number of requests that extended the unit's chain, the number of branches at the
// unit, the length of the prompt, and the new part of the prompt. Units of equal class and age are
// in one cell, ordered by last use. The next victim is the least recently used unit of the cell
// with the lowest worth.
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
