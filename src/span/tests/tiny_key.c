#include "tiny_key.h"

struct okv_materialisation_key tiny_key(void)
{
	return (struct okv_materialisation_key){
		.weights = {{1}},
		.serializer = "page-lkvt-1",
		.rope_type = "adjacent",
		.rope_scaling = "none",
		.rope_theta = 1e4,
		.layers = 4,
		.kv_heads = 4,
		.head_dim = 64,
		.page_tokens = 4,
		.kv_dtype = "f16",
		.tp_size = 1,
		.numerics = "test",
		.isolation_domain = "default",
	};
}
