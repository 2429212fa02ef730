#include "cache_store/shared/tier/shared_reader.h"

#include <deque>
#include <list>
#include <utility>

#include "proto/slice_hasher.h"

namespace hearth {
namespace {

constexpr size_t kBatchesUnderWay = 6;
// Of max_in_flight_bytes, in one batch: what is opened soon after it came, a cache still has.
constexpr uint64_t kBatchShare = 16;

}  // namespace

// One object while its parts come, in their order.
struct SharedReader::Reading {
  LoadedObject object;
  SliceHasher hasher;  // of the slice that the next part goes on with
  uint32_t parts_left = 0;
  bool is_torn = false;     // a part was missing, or was not what it has to be
  bool is_unknown = false;  // the engine did not say

  // Of one slice.
  void Hash(absl::Span<const std::byte> bytes) {
    hasher.Add(bytes.data(), bytes.size());
    if (hasher.bytes() < object.shape.slice_bytes) return;
    object.digests.push_back(hasher.digest());
    hasher.Begin();
  }
};

void SharedReader::Probe(const SharedPrompt& prompt, absl::Time deadline, ObjectMap* map) {
  const std::vector<ObjectId> ids = map->ToProbe();
  if (ids.empty()) return;
  std::vector<std::string> names;
  names.reserve(ids.size());
  for (const ObjectId& id : ids) names.push_back(prompt.NameOf(id, 0));
  const std::vector<absl::StatusOr<bool>> there = core_->engine->Exists(names, deadline);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!there[i].ok()) core_->Count(Counter::kSharedUnanswered);
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
    reading.object.shape = prompt.ShapeOf(id);
    reading.parts_left = reading.object.shape.parts();
    for (uint32_t part = 0; part < reading.parts_left; ++part) parts.push_back({&reading, part});
  }
  // Some batches come while the one before them is opened.
  std::deque<Batch> under_way;
  size_t asked = 0;
  for (;;) {
    while (asked < parts.size() && under_way.size() < kBatchesUnderWay &&
           core_->clock->Now() < deadline && !(stopped && stopped())) {
      under_way.push_back(Ask(prompt, parts, asked, deadline));
      asked = under_way.back().end;
    }
    if (under_way.empty()) break;
    Values values = under_way.front().values();
    const size_t begin = under_way.front().begin;
    under_way.pop_front();
    for (size_t i = 0; i < values.size(); ++i) {
      Take(prompt, parts[begin + i], std::move(values[i]));
    }
  }
  std::vector<ObjectId> torn;
  for (Reading& reading : readings) {
    const ObjectId id = reading.object.shape.id;
    const bool is_whole = reading.parts_left == 0 && !reading.is_torn && !reading.is_unknown;
    // Parts of two publishers, each sealed, need not be of the same bytes in every class.
    if (is_whole && reading.object.digests != reading.object.facts.slice_digests) {
      reading.is_torn = true;
      core_->Count(Counter::kSharedRejectedValues);
    }
    if (reading.is_torn) torn.push_back(id);
    if (is_whole && !reading.is_torn) loaded->emplace(id, std::move(reading.object));
  }
  Reject(prompt, torn, deadline);
}

void SharedReader::Reject(const SharedPrompt& prompt, absl::Span<const ObjectId> ids,
                          absl::Time deadline) {
  std::vector<std::string> names;
  for (const ObjectId& id : ids) names.push_back(prompt.NameOf(id, 0));
  if (!names.empty() && core_->clock->Now() < deadline) core_->engine->Erase(names, deadline);
}

SharedReader::Batch SharedReader::Ask(const SharedPrompt& prompt, absl::Span<const PartOf> parts,
                                      size_t begin, absl::Time deadline) {
  Batch batch{{}, begin, begin};
  std::vector<std::string> names;
  for (uint64_t bytes = 0; batch.end < parts.size(); ++batch.end) {
    const PartOf& part = parts[batch.end];
    bytes += SharedSpace::kSealBytes + part.object->object.shape.TextBytes(part.part);
    if (batch.end > begin && bytes > core_->options.max_in_flight_bytes / kBatchShare) break;
    names.push_back(prompt.NameOf(part.object->object.shape.id, part.part));
  }
  batch.values = core_->engine->GetLater(std::move(names), SharedSpace::kMaxValueBytes, deadline);
  return batch;
}

void SharedReader::Take(const SharedPrompt& prompt, const PartOf& part,
                        absl::StatusOr<std::string> value) {
  absl::Status status = value.status();
  if (value.ok()) {
    core_->Count(Counter::kSharedReadBytes, value->size());
    status = TakeValue(prompt, part, *value);
    core_->engine->Recycle(*std::move(value));
    if (status.ok()) return;
  }
  const bool is_gone = absl::IsNotFound(status), is_wrong = absl::IsDataLoss(status);
  (is_gone || is_wrong ? part.object->is_torn : part.object->is_unknown) = true;
  core_->Count(is_gone    ? Counter::kSharedVanishedParts
               : is_wrong ? Counter::kSharedRejectedValues
                          : Counter::kSharedUnanswered);
}

absl::Status SharedReader::TakeValue(const SharedPrompt& prompt, const PartOf& part,
                                     absl::string_view value) {
  LoadedObject& object = part.object->object;
  const SharedShape& shape = object.shape;
  while (object.slices.size() < shape.slices)
    object.slices.push_back(core_->store->AllocateSlice(shape.slice_bytes));
  std::vector<std::byte*> slices;
  for (const auto& slice : object.slices) slices.push_back(slice.get());
  std::vector<absl::Span<std::byte>> pieces = shape.PiecesOf(part.part, slices);
  std::string head(part.part == 0 ? shape.head_bytes() : 0, '\0');
  pieces.insert(pieces.begin(), {reinterpret_cast<std::byte*>(head.data()), head.size()});
  size_t head_left = head.size();
  const auto hash = [&](absl::Span<const std::byte> block) {
    if (head_left == 0) return part.object->Hash(block);
    head_left -= block.size();
  };
  absl::Status status =
      prompt.space->OpenInto(prompt.NameOf(shape.id, part.part), value, pieces, hash);
  if (!status.ok()) return status;
  if (part.part == 0) {
    absl::StatusOr<SharedFacts> facts = shape.ParseHead(head);
    if (!facts.ok()) return facts.status();
    object.facts = *std::move(facts);
    const uint64_t ends = object.facts.expires_unix_s;
    if (ends > 0 && absl::FromUnixSeconds(static_cast<int64_t>(ends)) <= core_->clock->Now()) {
      return absl::NotFoundError("its end has come");
    }
  }
  --part.object->parts_left;
  return absl::OkStatus();
}

}  // namespace hearth
