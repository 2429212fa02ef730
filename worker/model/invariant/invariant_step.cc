#include "worker/model/invariant/invariant_step.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/quantized/quantized_plane.h"
#include "worker/kernels/quantized/weight_blocks.h"

namespace hearth {

namespace {

absl::Status CheckPart(const InvariantPart& part, const ModelConfig& config, uint64_t model) {
  const absl::Span<const int32_t> tokens = part.tokens;
  if (part.kv == nullptr || part.kv->model() != model) {
    return absl::InvalidArgumentError(
        part.kv == nullptr || part.kv->model() == 0
            ? "the Kv was moved from, or NewKv did not create it; call NewKv"
            : "the Kv belongs to another model; call NewKv of this model");
  }
  if (part.want > 0 && part.logits == nullptr) {
    return absl::InvalidArgumentError("logits must not be null if want > 0");
  }
  if (tokens.empty() || part.want < 0 || static_cast<size_t>(part.want) > tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a part needs tokens and 0 <= want <= tokens; got ", tokens.size(),
                     " tokens, want = ", part.want));
  }
  if (absl::Status known = CheckTokenIds(tokens, config); !known.ok()) return known;
  const int length = part.kv->length();
  if (tokens.size() > static_cast<size_t>(config.max_position_embeddings - length)) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens.size(), " tokens after ", length, " tokens exceed the model's ",
                     config.max_position_embeddings, " positions (max_position_embeddings)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PrepareParts(absl::Span<const InvariantPart> parts, const ModelConfig& config,
                          uint64_t model) {
  if (parts.empty()) return absl::InvalidArgumentError("a step must have at least one part");
  std::set<const void*> seen;
  int64_t want = 0;
  const auto in_part = [&](size_t i, const absl::Status& error) {
    if (parts.size() == 1) return error;
    return absl::Status(error.code(),
                        absl::StrCat("part ", i, " of ", parts.size(), ": ", error.message()));
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    if (absl::Status s = CheckPart(parts[i], config, model); !s.ok()) return in_part(i, s);
    want += parts[i].want;
    if (!seen.insert(parts[i].kv).second ||
        (parts[i].want > 0 && !seen.insert(parts[i].logits).second)) {
      return in_part(i,
                     absl::InvalidArgumentError(
                         "another part of the step has the same Kv or logits buffer; each may be "
                         "used once"));
    }
  }
  if (want > kStepLogitsMax / config.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step returns the logits of at most ", kStepLogitsMax / config.vocab_size,
                     " tokens (", config.vocab_size, " logits each); got ", want, " tokens"));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const absl::Status room = parts[i].kv->MakeRoom(static_cast<int>(parts[i].tokens.size()));
    if (room.ok()) continue;
    for (size_t made = 0; made < i; ++made) parts[made].kv->ReleaseRoom();
    return in_part(i, room);
  }
  return absl::OkStatus();
}

namespace {

// Adds the part's LoRA adapter. Adjacent parts with the same adapter are merged into one product.
void AddAdapter(const InvariantPart& part, int number, int64_t first, int64_t rows,
                std::vector<AdapterRows>* adapters) {
  if (part.kv->adapter() == nullptr) return;
  const AdapterLayer* const layer = &part.kv->adapter()->layer(number);
  AdapterRows* const before = adapters->empty() ? nullptr : &adapters->back();
  if (before != nullptr && before->layer == layer && before->first + before->rows == first) {
    before->rows += rows;
  } else {
    adapters->push_back({first, rows, layer});
  }
}

}  // namespace

Rows InvariantStep::Room(int64_t rows, int64_t columns) {
  if (rooms_used_ == rooms_.size()) rooms_.emplace_back();
  Workspace& room = rooms_[rooms_used_++];
  return {room.Floats(static_cast<size_t>(rows * columns)), rows, columns};
}

void InvariantStep::Begin(Parts parts, const StepColumns& columns) {
  parts_ = parts;
  columns_ = columns;
  tokens_.clear();
  wanted_.clear();
  end_ = 0;
  places_.clear();
  rooms_used_ = 0;
  for (const InvariantPart& part : parts) {
    assert(part.want >= 0 && part.want <= static_cast<int64_t>(part.tokens.size()));
    tokens_.insert(tokens_.end(), part.tokens.begin(), part.tokens.end());
    for (int64_t row = rows() - part.want; row < rows(); ++row) wanted_.push_back(row);
    end_ = std::max(end_, part.kv->length() + static_cast<int64_t>(part.tokens.size()));
  }
  assert(rows() >= 1 && wanted() <= rows());
  shared_.x = Room(rows(), columns.hidden);
  shared_.normed = Room(rows(), columns.hidden);
  shared_.qkv = Room(rows(), columns.qkv);
  shared_.attended = Room(rows(), columns.attended);
  shared_.gated = Room(rows(), columns.gated);
  shared_.projected = Room(rows(), columns.hidden);
  const bool all = wanted() == rows();
  wanted_x_ = all ? shared_.x : Room(wanted(), columns.hidden);
  wanted_qkv_ = all ? shared_.qkv : Room(wanted(), columns.qkv);
}

InvariantStep::Places& InvariantStep::NextPlaces() {
  Places& places = places_.emplace_back();
  places.splits.resize(parts_.size());
  places.sealed.resize(parts_.size());
  return places;
}

void InvariantStep::AddSequence(size_t part, int number, int64_t begin, int64_t rows,
                                const InvariantKv& kv, Places* places) {
  places->splits[part] = kv.SplitsOf(number);
  AttendSequence sequence{places->splits[part].data(), begin, rows, nullptr, {}};
  if (kv.seals()) {
    places->sealed[part] = kv.SealedOf(number);
    sequence.sealed = places->sealed[part].data();
    sequence.quantization = kv.layout().quantization;
  }
  places->sequences.push_back(sequence);
}

LayerRows InvariantStep::RowsOfLayer(int number, const RopeTable& rope) {
  Places& places = NextPlaces();
  int64_t first = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    InvariantKv* kv = parts_[i].kv;
    const KvLayout& layout = kv->layout();
    const int64_t chunk = layout.chunk_tokens, dim = layout.head_dim, begin = kv->length();
    const int64_t rows = static_cast<int64_t>(parts_[i].tokens.size());
    const int64_t bytes = static_cast<int64_t>(KvDtypeBytes(layout.dtype));
    std::byte* slice = nullptr;
    for (int64_t position = begin; position < begin + rows; ++position) {
      if (slice == nullptr || position % chunk == 0) {
        slice = kv->SliceAt(number, static_cast<int>(position));
      }
      std::byte* keys = slice + position % chunk * dim * bytes;
      places.tokens.push_back({rope.Cos(position, 1).data, rope.Sin(position, 1).data, keys,
                               keys + layout.kv_heads * chunk * dim * bytes, chunk * dim});
    }
    AddSequence(i, number, begin, rows, *kv, &places);
    AddAdapter(parts_[i], number, first, rows, &places.adapters);
    first += rows;
  }
  LayerRows layer = shared_;
  assert(first == rows() && static_cast<int64_t>(places.tokens.size()) == rows());
  layer.tokens = places.tokens;
  layer.sequences = places.sequences;
  layer.adapters = places.adapters;
  return layer;
}

LayerRows InvariantStep::WantedRowsOfLayer(int number) {
  Places& places = NextPlaces();
  int64_t first = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const InvariantPart& part = parts_[i];
    const int64_t end = part.kv->length() + static_cast<int64_t>(part.tokens.size());
    if (part.want == 0) continue;
    AddSequence(i, number, end - part.want, part.want, *part.kv, &places);
    AddAdapter(part, number, first, part.want, &places.adapters);
    first += part.want;
  }
  LayerRows layer = shared_;
  assert(first == wanted());
  for (Rows* rows : {&layer.normed, &layer.attended, &layer.gated, &layer.projected}) {
    rows->rows = wanted();
  }
  layer.x = wanted_x_;
  layer.qkv = wanted_qkv_;
  layer.sequences = places.sequences;
  layer.adapters = places.adapters;
  return layer;
}

void InvariantStep::AddSealing(int number, KernelPhases* phases) const {
  for (const InvariantPart& part : parts_) {
    if (!part.kv->seals()) continue;
    const KvLayout& layout = part.kv->layout();
    const size_t chunk = layout.chunk_tokens, begin = static_cast<size_t>(part.kv->length());
    const auto values = static_cast<int64_t>(chunk * layout.head_dim);
    for (size_t split = begin / chunk; split < (begin + part.tokens.size()) / chunk; ++split) {
      const int position = static_cast<int>(split * chunk);
      const std::byte* from = part.kv->SliceAt(number, position);
      std::byte* to = part.kv->SealedAt(number, split);
      // The last plane also clears the padding after it, because the padding is stored with the
      // slice.
      phases->Add(2 * layout.kv_heads, [&layout, from, to, values](int64_t plane) {
        const FloatMode mode;
        const KvQuantization& form = layout.quantization;
        const bool keys = plane < layout.kv_heads;
        const QuantizedPlane quantized{form, keys ? form.axis_key : form.axis_value,
                                       layout.chunk_tokens, layout.head_dim};
        std::byte* at = to + plane * static_cast<int64_t>(quantized.bytes());
        std::vector<float> wide(static_cast<size_t>(values));
        const bool narrow = layout.dtype == KvDtype::kBFloat16;
        WidenRow(narrow ? ElementType::kBFloat16 : ElementType::kFloat32,
                 from + plane * values * static_cast<int64_t>(KvDtypeBytes(layout.dtype)), values,
                 wide.data());
        QuantizePlane(quantized, wide.data(), at);
        const std::byte* end = to + layout.QuantizedSliceBytes();
        if (plane + 1 < 2 * layout.kv_heads) return;
        at += quantized.bytes();
        std::memset(at, 0, static_cast<size_t>(end - at));
      });
    }
  }
}

void InvariantStep::AddWantedCopies(KernelPhases* phases) const {
  if (wanted() == rows()) return;
  phases->AddRows(wanted(), [this](int64_t row) {
    const int64_t from = wanted_[static_cast<size_t>(row)];
    std::copy_n(shared_.x.Row(from), columns_.hidden, wanted_x_.Row(row));
    std::copy_n(shared_.qkv.Row(from), columns_.attended, wanted_qkv_.Row(row));
  });
}

}  // namespace hearth
