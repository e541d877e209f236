/* The least that reads through SPDK: what the engine by SPDK is compared with.
 * spdk_loop TRID IO_BYTES DEPTH SECONDS: random reads on one queue of the first namespace, polled by one
 * thread; prints reads a second. */
#include <inttypes.h>
#include <stdlib.h>

#include <spdk/env.h>
#include <spdk/log.h>
#include <spdk/nvme.h>

struct io {
	void *buf;
	struct io *next;
};

static struct io *g_free;
static uint64_t g_done, g_failed;

static void
done(void *arg, const struct spdk_nvme_cpl *cpl)
{
	struct io *io = arg;

	g_failed += spdk_nvme_cpl_is_error(cpl);
	g_done++;
	io->next = g_free;
	g_free = io;
}

static void
disconnected(struct spdk_nvme_qpair *qpair, void *ctx)
{
	g_failed++;
}

int
main(int argc, char **argv)
{
	struct spdk_nvme_transport_id trid = {};
	struct spdk_nvme_io_qpair_opts qopts;
	struct spdk_nvme_ctrlr_opts copts;
	struct spdk_env_opts opts = {};
	struct spdk_nvme_poll_group *group = NULL;
	uint64_t io_bytes, depth, end, begin, random = 88172645463325252ull;

	if (argc != 5 || spdk_nvme_transport_id_parse(&trid, argv[1])) {
		return 2;
	}
	io_bytes = strtoull(argv[2], NULL, 10);
	depth = strtoull(argv[3], NULL, 10);
	opts.opts_size = sizeof(opts);
	spdk_env_opts_init(&opts);
	opts.opts_size = sizeof(opts);
	opts.name = "spdk_loop";
	opts.core_mask = "[1]";
	opts.no_huge = true;
	opts.no_pci = true;
	opts.mem_size = 256;
	spdk_log_set_print_level(SPDK_LOG_DISABLED);
	if (spdk_env_init(&opts)) {
		return 3;
	}
	spdk_nvme_ctrlr_get_default_ctrlr_opts(&copts, sizeof(copts));
	struct spdk_nvme_ctrlr *ctrlr = spdk_nvme_connect(&trid, &copts, sizeof(copts));
	if (!ctrlr) {
		return 4;
	}
	struct spdk_nvme_ns *ns = spdk_nvme_ctrlr_get_ns(ctrlr, spdk_nvme_ctrlr_get_first_active_ns(ctrlr));
	uint32_t blocks = io_bytes / spdk_nvme_ns_get_sector_size(ns);
	uint64_t places = spdk_nvme_ns_get_num_sectors(ns) / blocks;

	spdk_nvme_ctrlr_get_default_io_qpair_opts(ctrlr, &qopts, sizeof(qopts));
	qopts.io_queue_size = depth + 1;
	qopts.create_only = true;
	struct spdk_nvme_qpair *qpair = spdk_nvme_ctrlr_alloc_io_qpair(ctrlr, &qopts, sizeof(qopts));
	if (trid.trtype == SPDK_NVME_TRANSPORT_TCP) {
		group = spdk_nvme_poll_group_create(NULL, NULL);
		spdk_nvme_poll_group_add(group, qpair);
	}
	if (spdk_nvme_ctrlr_connect_io_qpair(ctrlr, qpair)) {
		return 5;
	}
	struct io *ios = calloc(depth, sizeof(*ios));
	for (uint64_t i = 0; i < depth; i++) {
		ios[i].buf = spdk_dma_malloc(io_bytes, 4096, NULL);
		ios[i].next = g_free;
		g_free = &ios[i];
	}
	begin = spdk_get_ticks();
	end = begin + spdk_get_ticks_hz() * strtoull(argv[4], NULL, 10);
	while (spdk_get_ticks() < end && !g_failed) {
		while (g_free) {
			struct io *io = g_free;

			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			g_free = io->next;
			if (spdk_nvme_ns_cmd_read(ns, qpair, io->buf, random % places * blocks, blocks, done, io, 0)) {
				return 6;
			}
		}
		if (group) {
			spdk_nvme_poll_group_process_completions(group, 0, disconnected);
		} else {
			spdk_nvme_qpair_process_completions(qpair, 0);
		}
	}
	double seconds = (double)(spdk_get_ticks() - begin) / spdk_get_ticks_hz();
	printf("%.0f\n", g_done / seconds);
	return g_failed ? 7 : 0;
}
