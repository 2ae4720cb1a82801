/*
 * The bytes of a data connection (docs/formats/peer.md). The requester connects, sends one request, and gets one
 * response: a header and, if its status is OK, exactly `size` raw bytes. Then the connection is free for the next
 * request.
 *
 *     request   u32 magic "OKVD", u16 version, u16 type (1 = READ), 16 bytes token
 *     response  u32 magic "OKVD", u16 version, u16 status (enum okv_status), u64 size
 */
#ifndef OKV_MOVER_WIRE_H
#define OKV_MOVER_WIRE_H

enum {
	OKV__DATA_MAGIC = 0x44564b4f, /* "OKVD" */
	OKV__DATA_VERSION = 1,
	OKV__DATA_READ = 1,
	OKV__DATA_REQUEST_BYTES = 24,
	OKV__DATA_RESPONSE_BYTES = 16,
};

#endif
