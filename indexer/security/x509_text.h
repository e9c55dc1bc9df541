// OpenSSL's certificates as text and numbers.
//
// *Threads*: any.

#ifndef KVATLAS_INDEXER_SECURITY_X509_TEXT_H_
#define KVATLAS_INDEXER_SECURITY_X509_TEXT_H_

#include <openssl/types.h>

#include <cstdint>
#include <string>

namespace kvatlas {

// PEM; empty: OpenSSL could not.
std::string PemOf(X509* certificate);
// The text that was written to a memory BIO.
std::string TextOf(BIO* memory);

// Unix time; 0: none.
int64_t UnixSeconds(const ASN1_TIME* time);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_X509_TEXT_H_
