#include "cache_store/store/background/scrubber.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hearth {
namespace {

// Number of object numbers that are looked up during one hold of the lock, about 50 ns each; most
// of them may no longer exist.
constexpr uint64_t kNumbersAtOnce = 4096;
constexpr char kProgressNote[] = "scrub";
// Limit of rereads of a slice with wrong bytes, within two minutes: enough for the quarantine of
// its object. If each read gives other bytes, the next pass reads the slice again.
constexpr int kMaxRereads = 10;

bool SameManifest(ManifestRecord stored, const ManifestRecord& expected) {
  // the record on disk has the time of the first publish
  stored.created_unix_s = expected.created_unix_s;
  return SerializeManifestRecord(stored) == SerializeManifestRecord(expected);
}

bool IsRotten(const absl::Status& read) { return absl::IsDataLoss(read) || absl::IsNotFound(read); }

}  // namespace

std::string ScrubProgress::Serialize() const {
  return absl::StrCat("1 ", next_object, " ", started_unix_s, " ", finished_unix_s);
}

ScrubProgress ScrubProgress::Parse(absl::string_view text) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, ' ');
  ScrubProgress progress;
  if (fields.size() == 4 && fields[0] == "1" &&
      absl::SimpleAtoi(fields[1], &progress.next_object) &&
      absl::SimpleAtoi(fields[2], &progress.started_unix_s) &&
      absl::SimpleAtoi(fields[3], &progress.finished_unix_s)) {
    return progress;
  }
  return {};
}

absl::Duration Scrubber::Step() {
  if (core_->tiers.disk == nullptr || core_->options.scrub.bytes_per_s == 0) {
    return absl::InfiniteDuration();
  }
  const absl::Time now = core_->clock->Now();
  if (!std::exchange(loaded_, true)) {
    progress_ = ScrubProgress::Parse(core_->tiers.disk->ReadNote(kProgressNote).value_or(""));
    finished_unix_s_.store(progress_.finished_unix_s);
  }
  // If the disk lost records, begin a pass at once, which writes them again from memory.
  const uint64_t losses = core_->tiers.disk->losses();
  if (std::exchange(losses_, losses) != losses) {
    progress_.next_object = 0;
    progress_.started_unix_s = 0;
    next_step_ = now;
  }
  if (now < next_step_ && next_step_ <= now + core_->options.scrub.period) {
    return next_step_ - now;  // a wait of more than one period means that the clock was set back
  }
  if (!BeginPass(now)) return next_step_ - now;
  bool at_end = false;
  StoredObject* object = HoldNext(&at_end);
  next_step_ = now;
  if (object == nullptr) {
    if (!at_end) return absl::ZeroDuration();
    progress_.next_object = 0;
    progress_.finished_unix_s = absl::ToUnixSeconds(now);
    core_->Count(Counter::kScrubPasses);
    SaveProgress();
    return absl::ZeroDuration();
  }
  if (next_slice_ == 0) CheckObjectRecord(object);
  assert(next_slice_ < object->layers().size());
  absl::Duration pause = CheckSlice(object, next_slice_);
  const bool is_done = pause == absl::ZeroDuration();
  unsaved_bytes_ += object->slice_bytes;
  pause = std::max(pause, absl::Seconds(static_cast<double>(object->slice_bytes) /
                                        static_cast<double>(core_->options.scrub.bytes_per_s)));
  if (is_done && ++next_slice_ == object->layers().size()) {
    CheckManifest(object);
    core_->Count(Counter::kScrubbedObjects);
    next_slice_ = 0;
    ++progress_.next_object;
  }
  {
    StoreLock lock(core_);
    core_->objects.Release(object);
  }
  if (unsaved_bytes_ >= kScrubSaveBytes) SaveProgress();
  next_step_ = now + pause;
  return pause;
}

// Begins a pass. Returns false if none is due before next_step_.
bool Scrubber::BeginPass(absl::Time now) {
  if (progress_.next_object > 0) return true;
  const absl::Time due =
      absl::FromUnixSeconds(progress_.started_unix_s) + core_->options.scrub.period;
  if (now < due && due <= now + core_->options.scrub.period) {
    next_step_ = due;
    return false;
  }
  progress_.next_object = 1;
  progress_.started_unix_s = absl::ToUnixSeconds(now);
  next_slice_ = 0;
  SaveProgress();
  return true;
}

// Returns the next object to check, and holds it; null if none of the looked up numbers has an
// object.
StoredObject* Scrubber::HoldNext(bool* at_end) {
  uint64_t& number = progress_.next_object;
  StoreLock lock(core_);
  const uint64_t end = core_->objects.next_number();
  const uint64_t stop = std::min(end, number + kNumbersAtOnce);
  for (; number < stop; ++number, next_slice_ = 0, rereads_ = 0) {
    StoredObject* object = core_->objects.Find(number);
    if (object == nullptr || !object->on_disk || object->retired) continue;
    core_->objects.Hold(object);
    return object;
  }
  *at_end = number >= end;
  return nullptr;
}

absl::Duration Scrubber::CheckSlice(StoredObject* object, size_t slice) {
  absl::Status read = core_->tiers.ReadFromDisk(*object, slice).status();
  core_->Count(Counter::kScrubbedBytes, object->slice_bytes);
  if (!read.ok()) core_->Count(Counter::kTierErrors);
  if (absl::IsDataLoss(read)) {
    if (rereads_ == 0) core_->Count(Counter::kScrubCorrupt);
    core_->tiers.disk->DropCached(object->number);
    read = core_->tiers.ReadFromDisk(*object, slice).status();
  }
  const int rereads = std::exchange(rereads_, 0);
  if (read.ok()) return absl::ZeroDuration();
  // Ignore read errors: they rather mean that the disk or its cable is at fault. The next reader
  // handles them.
  if (absl::IsDataLoss(read) && !WriteAgain(object).ok()) {
    quarantiner_->NoteReadFailure(object, read);
    StoreLock lock(core_);
    const absl::Duration pause =
        std::min(object->hidden_until - core_->clock->Now(), StoredObject::kLongestHidden);
    if (!object->retired && pause > absl::ZeroDuration() && rereads < kMaxRereads) {
      rereads_ = rereads + 1;
      return pause;
    }
  }
  next_slice_ = object->layers().size() - 1;  // skip the remaining slices of the object
  return absl::ZeroDuration();
}

absl::Status Scrubber::WriteAgain(StoredObject* object) {
  const HostCopy copy = core_->IntactCopy(object);
  if (copy == nullptr) return absl::NotFoundError("the object is not in RAM");
  std::vector<SliceWrite> slices;
  object->AddWrites(copy, &slices);
  return core_->tiers.disk_slices->WriteAll(slices);
}

// Verifies an object's record on disk. Its contents are also in memory, so a damaged record is
// written again and nothing is lost.
void Scrubber::CheckObjectRecord(StoredObject* object) {
  Digest key{};
  {
    StoreLock lock(core_);
    key = object->key();
  }
  const ObjectRecord expected = ObjectRecordOf(*object, key);
  const absl::StatusOr<ObjectRecord> stored = core_->tiers.disk->ReadObject(object->number);
  if (stored.ok() ? SerializeObject(*stored) == SerializeObject(expected)
                  : !IsRotten(stored.status())) {
    return;
  }
  // The object is held, so it cannot be erased at the same time.
  if (core_->tiers.disk->WriteObject(expected).ok()) {
    core_->Count(Counter::kScrubRepairedRecords);
  } else {
    core_->Count(Counter::kTierErrors);
  }
}

// Verifies the manifest of the restore point that ends at this object's segment. CheckManifest is
// called for the last object of each restore point, so each manifest is verified once in a pass.
void Scrubber::CheckManifest(StoredObject* object) {
  ManifestRecord expected;
  Digest id{};
  {
    StoreLock lock(core_);
    RestorePointEntry* point = object->node == nullptr ? nullptr : object->node->restore_point;
    if (point == nullptr || !point->durable) return;
    id = point->id();
    expected = DiskWriter::RecordOf(*point);
  }
  const absl::StatusOr<ManifestRecord> stored = core_->tiers.disk->ReadManifest(expected.number);
  if (stored.ok() ? !SameManifest(*stored, expected) : IsRotten(stored.status())) {
    core_->Count(Counter::kScrubRepairedRecords);
    writer_->Schedule({id}, 0);
  }
}

void Scrubber::SaveProgress() {
  unsaved_bytes_ = 0;
  finished_unix_s_.store(progress_.finished_unix_s);
  if (!core_->tiers.disk->WriteNote(kProgressNote, progress_.Serialize()).ok()) {
    core_->Count(Counter::kTierErrors);
  }
}

}  // namespace hearth
