package repository

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// lookTime bounds how long git may take to say what references there are.
const lookTime = 2 * time.Minute

// UploadPack is `git upload-pack --stateless-rpc`: it answers a fetch, or, with advertise, says
// what there is to fetch. protocol is the value of a Git-Protocol header, which the caller has
// checked, or "".
func (r *Repo) UploadPack(advertise bool, protocol string) *Command {
	c := r.serve("upload-pack", advertise)
	c.config = uploadConfiguration()
	if protocol != "" {
		c.Setenv("GIT_PROTOCOL", protocol)
	}
	return c
}

// ReceivePack is `git receive-pack --stateless-rpc`: it takes a push, checked as strictly as
// StorePack checks, of a pack of at most maxBytes; or, with advertise, says what there is now. A
// push must be read from disk or memory, not from the network.
func (r *Repo) ReceivePack(advertise bool, maxBytes int64) *Command {
	c := r.serve("receive-pack", advertise)
	if !advertise {
		c.Time = r.store.packTime
	}
	c.config = append(receiveConfiguration(), setting{"receive.maxInputSize", strconv.FormatInt(maxBytes, 10)})
	return c
}

func (r *Repo) serve(service string, advertise bool) *Command {
	args := []string{service, "--stateless-rpc"}
	if advertise {
		args = append(args, "--advertise-refs")
	}
	c := r.Command(append(args, ".")...)
	c.serves = true
	if advertise {
		c.reads, c.Time = true, lookTime
	}
	return c
}

// Scratch opens a file on the volume of the repositories that nobody else sees, and that is gone
// when it is closed or the process ends.
func (r *Repo) Scratch() (*os.File, error) {
	f, err := os.CreateTemp(filepath.Join(r.store.root, newFolder), "scratch-")
	if err != nil {
		return nil, fmt.Errorf("open a scratch file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, fmt.Errorf("open a scratch file: %w", err)
	}
	return f, nil
}
