/* What of SPDK dlfs uses. Which names become bindings, build.rs says. */
#include <stdarg.h>
#include <stdio.h>

#include <spdk/env.h>
#include <spdk/keyring.h>
#include <spdk/log.h>
#include <spdk/nvme.h>
#include <spdk/version.h>
#include <spdk/module/keyring/file.h>
