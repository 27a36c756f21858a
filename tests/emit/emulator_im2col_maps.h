// TMA descriptors of the convolution's kernel on the host: what the driver is given, by a number that is kept
// in the map. Refuses what the driver refuses (cuTensorMapEncodeIm2col, cuTensorMapEncodeTiled).
#pragma once
#include <map>

namespace emu_im2col {
struct Map {
  uint8_t* data; int64_t sizes[5], strides[5]; int rank, row, rows, element; bool windows, tf32;
  int64_t lower[3], upper[3], steps[3], box[5];
};
inline std::map<int64_t, Map> maps;
inline float round_tf32(float x) {
  uint32_t bits; memcpy(&bits, &x, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u;
  memcpy(&x, &bits, 4); return x;
}
inline int bytes_of(CUtensorMapDataType type) {
  return type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
}
inline bool known(Map& made, CUtensorMapDataType type, int rank, void const* data, cuuint64_t const* sizes, cuuint64_t const* strides, CUtensorMapSwizzle swizzle) {
  made.data = static_cast<uint8_t*>(const_cast<void*>(data));
  made.rank = rank;
  made.tf32 = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  made.element = bytes_of(type);
  for (int i = 0; i < 5; ++i) { made.sizes[i] = i < rank ? int64_t(sizes[i]) : 1; made.strides[i] = i >= rank ? 0 : i ? int64_t(strides[i - 1]) : made.element; }
  int const widest = swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 128 : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64 : 32;
  bool fine = uintptr_t(data) % 16 == 0 && rank <= 5 && made.row == widest;
  for (int i = 0; i < rank; ++i) fine = fine && sizes[i] > 0 && sizes[i] <= 4294967296u && (i == 0 || strides[i - 1] % 16 == 0);
  return fine;
}
inline int keep(CUtensorMap* map, Map const& made) {
  int64_t const number = int64_t(maps.size());
  maps[number] = made;
  memcpy(map, &number, sizeof(number));
  return 0;
}
}  // namespace emu_im2col

namespace ucc_im2col {
inline int encode(CUtensorMap* map, CUtensorMapDataType type, int rank, void const* data, cuuint64_t const* sizes, cuuint64_t const* strides,
                  int const* lower, int const* upper, int channels, int pixels, cuuint32_t const* steps, CUtensorMapSwizzle swizzle) {
  emu_im2col::Map made = {};
  made.windows = true;
  made.row = channels * emu_im2col::bytes_of(type);
  made.rows = pixels;
  bool fine = emu_im2col::known(made, type, rank, data, sizes, strides, swizzle) && rank >= 3 && channels <= 256 && pixels <= 1024;
  int64_t const far = rank == 3 ? 32767 : rank == 4 ? 127 : 15;
  for (int i = 0; i < rank - 2; ++i) {
    made.lower[i] = lower[i]; made.upper[i] = upper[i]; made.steps[i] = steps[i + 1];
    fine = fine && lower[i] >= -far - 1 && lower[i] <= far && upper[i] >= -far - 1 && upper[i] <= far && steps[i + 1] >= 1 && steps[i + 1] <= 8;
  }
  return fine ? emu_im2col::keep(map, made) : 1;
}
inline int tile(CUtensorMap* map, CUtensorMapDataType type, int rank, void const* data, cuuint64_t const* sizes, cuuint64_t const* strides,
                cuuint32_t const* box, CUtensorMapSwizzle swizzle) {
  emu_im2col::Map made = {};
  made.row = int(box[0]) * emu_im2col::bytes_of(type);
  made.rows = 1;
  bool fine = emu_im2col::known(made, type, rank, data, sizes, strides, swizzle);
  for (int i = 0; i < 5; ++i) { made.box[i] = i < rank ? box[i] : 1; fine = fine && made.box[i] >= 1 && made.box[i] <= 256; if (i) made.rows *= int(made.box[i]); }
  return fine ? emu_im2col::keep(map, made) : 1;
}
}  // namespace ucc_im2col
