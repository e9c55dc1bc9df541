// Replaces the engine's name of a model by the name that the client asked for, in a whole answer
// and in a stream of pieces.
//
// *Truth*: every `"model"` of an object, at any depth, whose value is the engine's name. A text
// that contains such words has its quotes escaped, and stays as it is. *Bounds*: a possible
// beginning of such a field is held back until the next piece: some bytes more than the name.
// *Threads*: one at a time.
//
// Example:
//   ModelNames names("llama-70b-v2", "llama");
//   out = names.Add(piece, /*last=*/false);

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_MODEL_NAMES_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_MODEL_NAMES_H_

#include <string>
#include <string_view>

namespace kvatlas {

class ModelNames {
 public:
  ModelNames(const std::string& engines, const std::string& clients);

  // The part of the answer that can go on; with the last piece all that is left.
  std::string Add(std::string_view piece, bool last);

 private:
  const std::string engines_;  // as JSON
  const std::string clients_;
  std::string held_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_MODEL_NAMES_H_
