// Command archive makes an image of a root file system, without a Docker daemon and without a
// registry:
//
//	archive ROOT PROGRAM NAME OUT.tar
//
// ROOT is a folder that deploy/image/rootfs has made, PROGRAM the path in it that the image runs,
// NAME the image's name with a tag (docker.io/local/tendril:dev). OUT.tar can be loaded by `docker
// load`, `podman load`, `ctr images import`, `skopeo copy oci-archive:OUT.tar` and `crane push`.
// The same root file system makes the same archive, byte for byte.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "archive: want ROOT PROGRAM NAME OUT.tar")
		os.Exit(2)
	}
	root, program, name, out := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	made, err := write(root, program, name, out)
	if err != nil {
		fmt.Fprintf(os.Stderr, "archive: %v\n", err)
		os.Exit(1)
	}
	fmt.Printf("%s\n  digest      %s\n  layer       %s\n  compressed  %.1f MiB\n  unpacked    %.1f MiB\n",
		name, made.digest, made.layer, mebibytes(made.compressed), mebibytes(made.unpacked))
}

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }
