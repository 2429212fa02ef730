// GPU programs for the operations between the matrix products of a step: embedding, norms, and
// rotary position embedding. The order of operations is that of worker/kernels/row_kernels.h, so
// the bits are the same.
#ifndef HEARTH_WORKER_DEVICE_ROW_PROGRAMS_H_
#define HEARTH_WORKER_DEVICE_ROW_PROGRAMS_H_

#include <cstdint>

#include "worker/device/block_program.h"
#include "worker/device/integer_matrix.h"
#include "worker/device/product_program.h"
#include "worker/device/step_table.h"

namespace hearth {

// Maximum columns of a row; Gemma 3 27B has the largest hidden size, 5,376.
inline constexpr int kRowColumnsMax = 5632;

// Writes sixteen partial sums of squares; lanes 0 to 15 of a warp compute them. Values are loaded
// kAhead iterations early, because each FMA would otherwise wait for its load.
HEARTH_HOST_DEVICE void SumSquares(const float* values, int columns, int lane, float* partial) {
  constexpr int kAhead = 8, kRun = 16 * kAhead;
  if (lane >= 16) return;
  const int whole = columns / kRun * kRun;
  float sum = 0, ahead[kAhead] = {};
  HEARTH_UNROLL
  for (int j = 0; j < kAhead && whole > 0; ++j) ahead[j] = values[16 * j + lane];
  for (int i = 0; i < whole; i += kRun) {
    float now[kAhead];
    HEARTH_UNROLL
    for (int j = 0; j < kAhead; ++j) now[j] = ahead[j];
    HEARTH_UNROLL
    for (int j = 0; j < kAhead && i + kRun < whole; ++j) {
      ahead[j] = values[i + kRun + 16 * j + lane];
    }
    HEARTH_UNROLL
    for (int j = 0; j < kAhead; ++j) sum = exact::Fma(now[j], now[j], sum);
  }
  for (int i = whole + lane; i < columns; i += 16) sum = exact::Fma(values[i], values[i], sum);
  partial[lane] = sum;
}

HEARTH_HOST_DEVICE float InverseNorm(const float* partial, int columns, float epsilon) {
  const float mean = exact::Div(exact::TreeSum(partial), static_cast<float>(columns));
  return exact::Div(1.0f, exact::Sqrt(exact::Add(mean, epsilon)));
}

// Copies a row to shared memory with all threads of the block. REQUIRES: `columns` is a multiple of
// 4.
template <int kWarps>
HEARTH_HOST_DEVICE void CopyRow(const float* from, int columns, float* to) {
  FOR_WARPS(warp, kWarps) {
    FOR_LANES(lane) {
      for (int i = (warp * 32 + lane) * 4; i < columns; i += kWarps * 32 * 4) {
        Copy16(to + i, from + i);
      }
    }
  }
}

// x = embedding * scale, normed = RmsNorm(x). One thread block for each row.
struct EmbedProgram {
  static constexpr int kWarps = 8, kThreads = kWarps * 32;
  struct Shared {
    alignas(16) float values[kRowColumnsMax];
    float partial[16];
  };

  DeviceMatrix embedding;  // one column for each token
  StepTable table;
  const float* norm;  // [hidden]
  float scale, epsilon;
  float *x, *normed;      // [rows][hidden]
  IntegerRows quantized;  // of `normed`; not written if null

  HEARTH_HOST_DEVICE void Run(Shared* shared, BlockNumber block) const {
    const int row = block.number, columns = embedding.inputs;
    const int rows = *table.row_count, token = table.tokens[row];
    const bool is_integer = embedding.form != IntegerForm::kNone;
    WaitForEarlier();
    AllowNextLaunch();
    if (row >= rows) return;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        for (int i = warp * 32 + lane; is_integer && i < columns; i += kThreads) {
          const float weight =
              IntegerWeight(embedding.form, reinterpret_cast<const unsigned char*>(embedding.data),
                            columns, token, i);
          shared->values[i] = exact::Mul(weight, scale);
        }
        for (int group = warp * 32 + lane; !is_integer && group * 8 < columns; group += kThreads) {
          const Word4 words = LoadWord4(
              embedding.data + (static_cast<int64_t>(group) * embedding.columns + token) * 8);
          for (int i = 0; i < 8; ++i) {
            const uint32_t pair = words.v[i / 2];
            const float weight = exact::FloatOf(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
            shared->values[group * 8 + i] = exact::Mul(weight, scale);
          }
        }
      }
    }
    BARRIER();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        if (warp == 0) SumSquares(shared->values, columns, lane, shared->partial);
      }
    }
    BARRIER();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const float inverse = InverseNorm(shared->partial, columns, epsilon);
        const int64_t at = static_cast<int64_t>(row) * columns;
        for (int i = warp * 32 + lane; i < columns; i += kThreads) {
          const float value = shared->values[i];
          x[at + i] = value;
          shared->values[i] = exact::Mul(exact::Mul(value, inverse), norm[i]);
          normed[at + i] = shared->values[i];
        }
      }
    }
    QuantizeRow<kWarps>(shared->values, columns, quantized, row);
  }
};

// x += RmsNorm(y), normed = RmsNorm(x). One thread block for each row.
struct AddNormProgram {
  static constexpr int kWarps = 8, kThreads = kWarps * 32;
  struct Shared {
    alignas(16) float y[kRowColumnsMax], x[kRowColumnsMax];
    alignas(16) float y_norm[kRowColumnsMax], x_norm[kRowColumnsMax];
    float partial[2][16];
  };

  StepTable table;
  int columns;
  float epsilon;
  const float *y, *y_norm, *x_norm;  // y: [rows][columns]; norms: [columns]
  float *x, *normed;                 // [rows][columns]
  IntegerRows quantized;             // of `normed`; not written if null

  HEARTH_HOST_DEVICE void Run(Shared* shared, BlockNumber block) const {
    const bool is_row = block.number < *table.row_count;
    CopyRow<kWarps>(y_norm, columns, shared->y_norm);
    CopyRow<kWarps>(x_norm, columns, shared->x_norm);
    WaitForEarlier();
    AllowNextLaunch();
    const int64_t at = static_cast<int64_t>(block.number) * columns;
    CopyRow<kWarps>(y + at, columns, shared->y);
    CopyRow<kWarps>(x + at, columns, shared->x);
    CommitCopies();
    WaitCopies<0>();
    if (!is_row) return;
    BARRIER();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        if (warp == 0) SumSquares(shared->y, columns, lane, shared->partial[0]);
      }
    }
    BARRIER();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const float inverse = InverseNorm(shared->partial[0], columns, epsilon);
        for (int i = warp * 32 + lane; i < columns; i += kThreads) {
          const float more = exact::Mul(exact::Mul(shared->y[i], inverse), shared->y_norm[i]);
          shared->x[i] = exact::Add(shared->x[i], more);
        }
      }
    }
    BARRIER();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        if (warp == 0) SumSquares(shared->x, columns, lane, shared->partial[1]);
      }
    }
    BARRIER();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const float inverse = InverseNorm(shared->partial[1], columns, epsilon);
        for (int i = warp * 32 + lane; i < columns; i += kThreads) {
          x[at + i] = shared->x[i];
          shared->x[i] = exact::Mul(exact::Mul(shared->x[i], inverse), shared->x_norm[i]);
          normed[at + i] = shared->x[i];
        }
      }
    }
    QuantizeRow<kWarps>(shared->x, columns, quantized, block.number);
  }
};

// Processes each row [queries, keys, values]. Queries are normed and rotated (RoPE) in place. Keys
// are normed, rotated and written to their KV block. Values are copied to their KV block. One warp
// for each head of a row.
struct HeadNormProgram {
  static constexpr int kWarps = 8, kHeadDimMax = 256;
  struct Shared {
    float values[kWarps][kHeadDimMax];
    float partial[kWarps][16];
  };

  StepTable table;
  KvPlace place;
  bool is_global;
  int rows;
  float epsilon;
  const float *q_norm, *k_norm;  // [head_dim]
  const float *cos, *sin;        // [positions][head_dim / 2]
  float* qkv;                    // [rows][(heads + 2 * kv_heads) * head_dim]

  static int Blocks(int rows, int heads, int kv_heads) {
    return (rows * (heads + 2 * kv_heads) + kWarps - 1) / kWarps;
  }

  HEARTH_HOST_DEVICE void Run(Shared* shared, BlockNumber block) const {
    const int dim = place.head_dim, heads = place.heads + 2 * place.kv_heads;
    const int units = *table.row_count * heads;
    PerThread<Place, 1, kWarps> places;
    PerThread<Turn, kTurns, kWarps> turns;
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) {
        const int unit = block.number * kWarps + warp;
        if (unit < units) {
          places.At(warp, lane)[0] = PlaceOf(unit);
          LoadTurns(places.At(warp, lane)[0], lane, turns.At(warp, lane));
        }
      }
    }
    WaitForEarlier();
    AllowNextLaunch();
    FOR_WARPS(warp, kWarps) {
      const int unit = block.number * kWarps + warp;
      if (unit < units) {
        FOR_LANES(lane) {
          for (int i = lane; i < dim; i += 32) shared->values[warp][i] = Head(unit)[i];
        }
      }
    }
    BARRIER();
    FOR_WARPS(warp, kWarps) {
      FOR_LANES(lane) { SumSquares(shared->values[warp], dim, lane, shared->partial[warp]); }
    }
    BARRIER();
    FOR_WARPS(warp, kWarps) {
      const int unit = block.number * kWarps + warp;
      if (unit < units) {
        FOR_LANES(lane) {
          Write(places.At(warp, lane)[0], turns.At(warp, lane), shared->values[warp],
                shared->partial[warp], lane);
        }
      }
    }
  }

 private:
  static constexpr int kTurns = kHeadDimMax / 2 / 32;  // rotated pairs that one lane processes
  // Where HeadNormProgram writes one head.
  struct Place {
    void* to;  // [head_dim] floats, or bfloat16 if is_narrow
    int position;
    bool is_query, is_value, is_narrow;
  };
  // Norm weights and RoPE factors for two elements of a head that are rotated together.
  struct Turn {
    float first_norm, second_norm, cos, sin;
  };

  HEARTH_HOST_DEVICE float* Head(int unit) const {
    return qkv + static_cast<int64_t>(unit) * place.head_dim;
  }

  HEARTH_HOST_DEVICE Place PlaceOf(int unit) const {
    const int heads = place.heads + 2 * place.kv_heads, row = unit / heads, head = unit % heads;
    const int position = table.positions[row];
    const bool is_query = head < place.heads;
    void* to = Head(unit);
    if (!is_query) {
      std::byte* slice = InGlobal(table.lists[is_global].row_blocks[row]) + place.offset;
      // index in the KV block: first the keys of all KV heads, then the values
      const int64_t plane = head - place.heads;
      to = slice + (plane * place.split + position % place.split) * place.head_dim *
                       (place.is_bf16 ? 2 : 4);
    }
    return {to, position, is_query, head >= place.heads + place.kv_heads,
            place.is_bf16 && !is_query};
  }

  HEARTH_HOST_DEVICE void LoadTurns(const Place& to, int lane, Turn* turns) const {
    const int half = place.head_dim / 2;
    const float* norm = to.is_query ? q_norm : k_norm;
    const int64_t at = static_cast<int64_t>(to.position) * half;
    HEARTH_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      const int i = turn * 32 + lane;
      if (i < half) turns[turn] = {norm[i], norm[half + i], cos[at + i], sin[at + i]};
    }
  }

  HEARTH_HOST_DEVICE void Put(const Place& place_of, int i, float value) const {
    if (place_of.is_narrow) {
      const uint16_t bits = Bf16Of(value);
      static_cast<uint16_t*>(place_of.to)[i] =
          place_of.is_value && place.values_are_finite ? exact::FiniteBf16(bits) : bits;
    } else {
      static_cast<float*>(place_of.to)[i] = value;
    }
  }
  HEARTH_HOST_DEVICE void Write(const Place& place_of, const Turn* turns, const float* values,
                                const float* partial, int lane) const {
    const int dim = place.head_dim, half = dim / 2;
    if (place_of.is_value) {
      for (int i = lane; i < dim; i += 32) Put(place_of, i, values[i]);
      return;
    }
    const float inverse = InverseNorm(partial, dim, epsilon);
    HEARTH_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      const int i = turn * 32 + lane;
      if (i >= half) continue;
      const Turn& of = turns[turn];
      const float first = exact::Mul(exact::Mul(values[i], inverse), of.first_norm);
      const float second = exact::Mul(exact::Mul(values[half + i], inverse), of.second_norm);
      Put(place_of, i, exact::Fma(first, of.cos, -exact::Mul(second, of.sin)));
      Put(place_of, half + i, exact::Fma(second, of.cos, exact::Mul(first, of.sin)));
    }
  }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_ROW_PROGRAMS_H_
