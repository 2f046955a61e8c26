package gittree

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// copyFolder gives the repository at path the references of the one in a folder, and what they
// reach. (A fetch from a folder would do the same, but git starts a shell for it, which an image
// may not have.)
func (g Git) copyFolder(ctx context.Context, from, path string) error {
	from, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	const all = "%(objectname) %(refname)"
	want, err := g.references(ctx, from, all)
	if err != nil {
		return err
	}
	have, err := g.references(ctx, path, all)
	if err != nil {
		return err
	}
	if maps.Equal(want, have) {
		return nil
	}
	wanted, had := ids(want), ids(have)
	known, err := g.present(ctx, from, had) // git cannot leave out what it does not know
	if err != nil {
		return err
	}
	there, err := g.present(ctx, path, wanted)
	if err != nil {
		return err
	}
	if len(there) < len(wanted) {
		if err := g.transfer(ctx, from, path, wanted, known); err != nil {
			return err
		}
	}
	// All of it must be there before a reference says so.
	if _, err := g.run(ctx, path, revisions(wanted, had), "rev-list", "--objects", "--quiet", "--stdin"); err != nil {
		return err
	}
	return g.setReferences(ctx, path, want, have)
}

// ids are the objects that references name, each once.
func ids(refs map[string]string) []string {
	return slices.Compact(slices.Sorted(maps.Values(refs)))
}

// revisions says which objects to begin and to end with, as git reads it.
func revisions(from, without []string) string {
	var b strings.Builder
	for _, id := range from {
		b.WriteString(id + "\n")
	}
	for _, id := range without {
		b.WriteString("^" + id + "\n")
	}
	return b.String()
}

// present returns those of the objects that a repository has.
func (g Git) present(ctx context.Context, path string, ids []string) (present []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	out, err := g.run(ctx, path, strings.Join(ids, "\n")+"\n", "cat-file", "--batch-check")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		if id, rest, _ := strings.Cut(strings.TrimSpace(line), " "); rest != "missing" {
			present = append(present, id)
		}
	}
	return present, nil
}

// transfer brings what the wanted objects reach, and the known ones do not, from one repository
// into a pack of another.
func (g Git) transfer(ctx context.Context, from, to string, wanted, known []string) error {
	pack, packSaid := g.command(ctx, from, "pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q")
	pack.Stdin = strings.NewReader(revisions(wanted, known))
	index, indexSaid := g.command(ctx, to, "index-pack", "--stdin")
	pipe, err := pack.StdoutPipe()
	if err != nil {
		return err
	}
	index.Stdin = pipe
	if err := pack.Start(); err != nil {
		return fmt.Errorf("start git: %w", err)
	}
	indexed := index.Run()
	if indexed != nil {
		_ = pack.Cancel() // nobody reads it any more
	}
	packed := pack.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	switch {
	case packed != nil && (indexed == nil || errors.As(packed, &exit) && exit.Exited()):
		return &Error{Command: "pack-objects", Said: packSaid.String(), Err: packed}
	case indexed != nil:
		return &Error{Command: "index-pack", Said: indexSaid.String(), Err: indexed}
	}
	return nil
}

// setReferences makes the references of a repository exactly those that are wanted. Those that go
// go first: they may stand where folders of others come.
func (g Git) setReferences(ctx context.Context, path string, want, have map[string]string) error {
	var gone, set strings.Builder
	for name := range have {
		if _, stays := want[name]; !stays {
			fmt.Fprintf(&gone, "delete %s\n", name)
		}
	}
	for name, id := range want {
		if have[name] != id {
			fmt.Fprintf(&set, "update %s %s\n", name, id)
		}
	}
	for _, changes := range []string{gone.String(), set.String()} {
		if changes == "" {
			continue
		}
		if _, err := g.run(ctx, path, changes, "update-ref", "--no-deref", "--stdin"); err != nil {
			return err
		}
	}
	return nil
}
