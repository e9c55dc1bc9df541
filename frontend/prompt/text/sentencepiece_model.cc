// Opens the shim library (`sentencepiece_shim.h`) at run time and wraps its C functions. This file
// includes no header of SentencePiece.

#include "frontend/prompt/text/sentencepiece_model.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "frontend/prompt/text/sentencepiece_shim.h"

namespace kvatlas {
namespace {

constexpr char kFile[] = "libkvatlas_sentencepiece.so";
constexpr char kFunctions[] = "kvatlas_sentencepiece_1";

// RTLD_DEEPBIND makes the library prefer its own symbols, so that it uses its own copy of Protocol
// Buffers. AddressSanitizer and ThreadSanitizer refuse to open a library so.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOwnSymbolsFirst = 0;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr int kOwnSymbolsFirst = 0;
#else
constexpr int kOwnSymbolsFirst = RTLD_DEEPBIND;
#endif
#else
constexpr int kOwnSymbolsFirst = RTLD_DEEPBIND;
#endif

// The folder of the program or shared library that holds this code; empty when unknown. `dladdr1`
// finds the object that has `kFile`; the main program has an empty name there, so /proc tells its
// path.
std::filesystem::path OwnFolder() {
  Dl_info found;
  void* object = nullptr;
  if (dladdr1(kFile, &found, &object, RTLD_DL_LINKMAP) == 0) return {};
  const char* name = static_cast<const link_map*>(object)->l_name;
  if (*name != '\0') return std::filesystem::path(name).parent_path();
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
}

// Where the library is looked for: beside the program as it is built, as it is installed, and
// wherever the system looks.
std::vector<std::string> Places() {
  std::vector<std::string> places;
  if (const std::filesystem::path own = OwnFolder(); !own.empty()) {
    for (const char* folder : {"", "text", "../lib"}) places.push_back(own / folder / kFile);
  }
  places.emplace_back(kFile);
  return places;
}

// Opens the library, or finds it open. Null, with the reasons of all places in `error`. It is never
// closed (RTLD_NODELETE); opening it again is cheap, as the system counts its users.
const KvatlasSentencePiece* Open(std::string& error) {
  std::string reasons;
  for (const std::string& place : Places()) {
    void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | kOwnSymbolsFirst);
    void* functions = library == nullptr ? nullptr : dlsym(library, kFunctions);
    if (functions != nullptr) {
      return reinterpret_cast<decltype(&kvatlas_sentencepiece_1)>(functions)();
    }
    const char* reason = dlerror();
    reasons.append(reasons.empty() ? "" : "; ").append(reason == nullptr ? place : reason);
  }
  error = std::string("models of this kind need ") + kFile + " (" + reasons + ")";
  return nullptr;
}

// Takes over words of the library and frees them there: they came from its allocator.
std::string Taken(const KvatlasSentencePiece& functions, char* words) {
  if (words == nullptr) return "no memory";
  std::string taken = words;
  functions.release(words);
  return taken;
}

}  // namespace

// A loaded model and the functions that serve it. The functions are a constant of the library and
// outlive every model.
struct SentencePieceModel::Library {
  const KvatlasSentencePiece& functions;
  KvatlasSentencePieceModel* const model;

  ~Library() { functions.release_model(model); }

  Named Of(KvatlasSentencePieceToken which) const {
    const char* piece = "";
    const int32_t id = functions.token(model, which, &piece);
    if (id < 0) return {};
    return {.id = id, .piece = piece};
  }
};

SentencePieceModel::SentencePieceModel(std::unique_ptr<Library> library)
    : library_(std::move(library)) {}
SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(std::string_view model,
                                                             std::string& error) {
  const KvatlasSentencePiece* functions = Open(error);
  if (functions == nullptr) return nullptr;
  char* words = nullptr;
  KvatlasSentencePieceModel* loaded = functions->load(model.data(), model.size(), &words);
  if (loaded == nullptr) {
    error = Taken(*functions, words);
    return nullptr;
  }
  return std::unique_ptr<SentencePieceModel>(
      new SentencePieceModel(std::unique_ptr<Library>(new Library{*functions, loaded})));
}

bool SentencePieceModel::Encode(std::string_view text, std::vector<uint32_t>& ids,
                                std::string& error) const {
  const KvatlasSentencePiece& functions = library_->functions;
  uint32_t* encoded = nullptr;
  size_t count = 0;
  char* words = nullptr;
  if (!functions.encode(library_->model, text.data(), text.size(), &encoded, &count, &words)) {
    error = Taken(functions, words);
    return false;
  }
  ids.insert(ids.end(), encoded, encoded + count);
  functions.release(encoded);
  return true;
}

SentencePieceModel::Named SentencePieceModel::bos() const {
  return library_->Of(KVATLAS_SENTENCEPIECE_BOS);
}
SentencePieceModel::Named SentencePieceModel::eos() const {
  return library_->Of(KVATLAS_SENTENCEPIECE_EOS);
}
SentencePieceModel::Named SentencePieceModel::unk() const {
  return library_->Of(KVATLAS_SENTENCEPIECE_UNK);
}
size_t SentencePieceModel::vocabulary_size() const {
  return library_->functions.vocabulary_size(library_->model);
}

}  // namespace kvatlas
