package fetch

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
)

func FuzzReadAdvertisement(f *testing.F) {
	id := strings.Repeat("a", 40)
	f.Add([]byte("001e# service=git-upload-pack\n00000000"))
	f.Add([]byte("001e# service=git-upload-pack\n0000003f" + id + " refs/heads/x\x00ofs-delta\n0000"))
	f.Add([]byte("001e# service=git-upload-pack\n0000000eversion 1\n003f" + id + " refs/heads/x\x00ofs-delta\n0000"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &server{advertised: map[string]bool{}, capabilities: capability.NewList()}
		if err := s.read(bytes.NewReader(in), []string{id}); err != nil && len(err.Error()) > 1000 {
			t.Fatalf("an error of %d bytes", len(err.Error()))
		}
		if len(s.advertised) > 1 {
			t.Fatal("remembers what was not asked for")
		}
	})
}

func FuzzOpenPack(f *testing.F) {
	f.Add([]byte("0008NAK\n000a\x01PACK.0000"), 2)
	f.Add([]byte("0008NAK\nPACK"), 0)
	f.Add([]byte("0038ACK "+strings.Repeat("a", 40)+" common\n0008NAK\n0009\x02hey\n"), 1)
	f.Add([]byte("0010ERR go away\n"), 2)
	f.Fuzz(func(t *testing.T, in []byte, band int) {
		pack, err := openPack(bufio.NewReader(bytes.NewReader(in)), bands(band))
		if err == nil {
			var n int64
			if n, err = io.Copy(io.Discard, pack); n > int64(len(in)) {
				t.Fatalf("%d bytes became %d", len(in), n)
			}
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Fatalf("an error of %d bytes", len(err.Error()))
		}
	})
}
