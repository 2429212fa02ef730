#include "cache_store/shared/tier/shared_reader.h"

#include <list>
#include <utility>

namespace hearth {

// One object while its parts come.
struct SharedReader::Reading {
  SharedShape shape;
  LoadedObject object;
  std::vector<std::byte*> memory;  // of the slices
  uint32_t parts_left = 0;
  bool is_torn = false;     // a part was missing, or was not what it has to be
  bool is_unknown = false;  // the engine did not say
};

void SharedReader::Probe(const SharedPrompt& prompt, absl::Time deadline, ObjectMap* map) {
  const std::vector<ObjectId> ids = map->ToProbe();
  if (ids.empty()) return;
  std::vector<std::string> names;
  names.reserve(ids.size());
  for (const ObjectId& id : ids) names.push_back(prompt.NameOf(id, 0));
  const std::vector<absl::StatusOr<bool>> there = engine_->Exists(names, deadline);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!there[i].ok()) counters_->Add(Counter::kSharedUnanswered);
    if (there[i].ok() && *there[i]) map->Set(ids[i], ObjectMap::Place::kEngine);
  }
}

void SharedReader::Load(const SharedPrompt& prompt, absl::Span<const ObjectId> ids,
                        absl::Time deadline, const std::function<bool()>& stopped,
                        LoadedObjects* loaded) {
  std::list<Reading> readings;
  std::vector<PartOf> parts;
  for (const ObjectId& id : ids) {
    Reading& reading = readings.emplace_back();
    reading.shape = prompt.ShapeOf(id);
    reading.parts_left = reading.shape.parts();
    for (uint32_t part = 0; part < reading.parts_left; ++part) parts.push_back({&reading, part});
  }
  size_t next = 0;
  while (next < parts.size() && clock_->Now() < deadline && !(stopped && stopped())) {
    std::vector<std::string> names;
    const size_t first = next;
    for (uint64_t bytes = 0; next < parts.size(); ++next) {
      const SharedShape& shape = parts[next].object->shape;
      bytes += SharedSpace::kSealBytes + shape.TextBytes(parts[next].part);
      if (next > first && bytes > options_.max_in_flight_bytes) break;
      names.push_back(prompt.NameOf(shape.id, parts[next].part));
    }
    std::vector<absl::StatusOr<std::string>> values =
        engine_->Get(names, SharedSpace::kMaxValueBytes, deadline);
    for (size_t i = first; i < next; ++i) {
      Take(prompt, parts[i], std::move(values[i - first]));
    }
  }
  std::vector<std::string> torn;
  for (Reading& reading : readings) {
    if (reading.parts_left == 0 && !reading.is_torn && !IsWhole(reading)) reading.is_torn = true;
    if (reading.is_torn) torn.push_back(prompt.NameOf(reading.shape.id, 0));
    if (reading.parts_left > 0 || reading.is_torn || reading.is_unknown) continue;
    loaded->emplace(reading.shape.id, std::move(reading.object));
  }
  if (!torn.empty() && clock_->Now() < deadline) engine_->Erase(torn, deadline);
}

// Parts of two publishers, each sealed, need not be of the same bytes in every class of exactness.
bool SharedReader::IsWhole(const Reading& reading) {
  for (size_t i = 0; i < reading.object.slices.size(); ++i) {
    const absl::Span<const std::byte> bytes = reading.object.slices[i].bytes;
    if (SliceDigest(bytes.data(), bytes.size()) == reading.object.facts.slice_digests[i]) continue;
    counters_->Add(Counter::kSharedRejectedValues);
    return false;
  }
  return true;
}

void SharedReader::Take(const SharedPrompt& prompt, const PartOf& part,
                        absl::StatusOr<std::string> value) {
  if (value.ok()) {
    counters_->Add(Counter::kSharedReadBytes, value->size());
    if (!TakeText(prompt, part, *value).ok()) {
      part.object->is_torn = true;
      counters_->Add(Counter::kSharedRejectedValues);
    }
  } else if (absl::IsNotFound(value.status())) {
    part.object->is_torn = true;
    counters_->Add(Counter::kSharedVanishedParts);
  } else if (absl::IsDataLoss(value.status())) {  // too long
    part.object->is_torn = true;
    counters_->Add(Counter::kSharedRejectedValues);
  } else {
    part.object->is_unknown = true;
    counters_->Add(Counter::kSharedUnanswered);
  }
}

absl::Status SharedReader::TakeText(const SharedPrompt& prompt, const PartOf& part,
                                    absl::string_view value) {
  Reading& reading = *part.object;
  const absl::StatusOr<std::string> text =
      prompt.space->Open(prompt.NameOf(reading.shape.id, part.part), value);
  if (!text.ok()) return text.status();
  if (part.part == 0) {
    absl::StatusOr<SharedFacts> facts = reading.shape.ParseHead(*text);
    if (!facts.ok()) return facts.status();
    reading.object.facts = *std::move(facts);
    const uint64_t ends = reading.object.facts.expires_unix_s;
    if (ends > 0 && absl::FromUnixSeconds(static_cast<int64_t>(ends)) <= clock_->Now()) {
      return absl::DataLossError("its end has come");
    }
  }
  if (reading.is_torn || reading.is_unknown) return absl::OkStatus();
  // Memory only for what begins well: each part has passed its seal by now.
  while (reading.memory.size() < reading.shape.slices) {
    std::shared_ptr<std::byte> memory = AllocateSlice(reading.shape.slice_bytes);
    reading.memory.push_back(memory.get());
    const absl::Span<const std::byte> bytes(memory.get(), reading.shape.slice_bytes);
    reading.object.slices.push_back(SliceView{std::move(memory), bytes});
  }
  --reading.parts_left;
  return reading.shape.CopyPart(part.part, *text, reading.memory);
}

}  // namespace hearth
