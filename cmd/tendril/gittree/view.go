package gittree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"tendril.dev/lib/nostr"
)

const (
	// maxPackedRefs bounds a repository's file of references in bytes, maxReference one that has a
	// file of its own, and maxReferences how many a repository may have.
	maxPackedRefs = 128 << 20
	maxReference  = 1 << 10
	maxReferences = 1_000_000
)

// The references that matter to a server. A server keeps others for itself, such as those below
// refs/grasp/, which say which objects it must not remove.
const (
	branches = "refs/heads/"
	tags     = "refs/tags/"
	pulls    = "refs/nostr/"
)

// read reads a file of the folder that is no symbolic link, if it is not larger.
func (f *Folder) read(at string, most int64) ([]byte, error) {
	info, err := f.root.Lstat(at)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("it is no regular file of at most %d bytes", most)
	}
	file, err := f.root.Open(at)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, most))
}

// References are the branches, tags and commits of pull requests in a repository, by name. Those
// that stand for another one are left out, and what is none.
func (f *Folder) References(r Repo) (map[string]string, error) {
	refs := map[string]string{}
	add := func(name, id string) error {
		known := strings.HasPrefix(name, branches) || strings.HasPrefix(name, tags) || strings.HasPrefix(name, pulls)
		if known && nostr.IsObjectID(id) && nostr.CheckRefName(name) == nil {
			refs[name] = id
		}
		if len(refs) > maxReferences {
			return fmt.Errorf("it has more than %d references", maxReferences)
		}
		return nil
	}
	packed, err := f.read(path.Join(r.dir, "packed-refs"), maxPackedRefs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read packed-refs: %w", err)
	}
	for line := range bytes.Lines(packed) {
		if id, name, ok := strings.Cut(strings.TrimRight(string(line), "\n"), " "); ok {
			if err := add(name, id); err != nil {
				return nil, err
			}
		}
	}
	err = fs.WalkDir(f.root.FS(), path.Join(r.dir, "refs"), func(at string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name := strings.TrimPrefix(at, r.dir+"/")
		text, err := f.read(at, maxReference)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		delete(refs, name) // one of packed-refs is older
		return add(name, strings.TrimSpace(string(text)))
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return refs, err
}

// shadows are folders with links to the objects of others, and to nothing else of theirs. Git looks
// at them instead, so that it never reads where a folder of objects says that more of them are.
type shadows struct {
	mu   sync.Mutex
	made map[string]string // by the folder of objects
}

// shadow returns the shadow of a folder of objects, which is made once.
func (f *Folder) shadow(objects string) (string, error) {
	f.objects.mu.Lock()
	defer f.objects.mu.Unlock()
	if at := f.objects.made[objects]; at != "" {
		return at, nil
	}
	at := filepath.Join(f.temp, fmt.Sprintf("objects-%d", len(f.objects.made)))
	if err := f.link(objects, at); err != nil {
		return "", fmt.Errorf("read the objects in %s: %w", objects, err)
	}
	f.objects.made[objects] = at
	return at, nil
}

var (
	looseFolder = regexp.MustCompile(`^[0-9a-f]{2}$`)
	looseObject = regexp.MustCompile(`^[0-9a-f]{38}([0-9a-f]{24})?$`)
	packFile    = regexp.MustCompile(`^pack-[0-9a-f]{40}([0-9a-f]{24})?\.(pack|idx)$`)
)

// link makes a folder of links to the regular files below objects that hold objects.
func (f *Folder) link(objects, at string) error {
	if err := os.MkdirAll(filepath.Join(at, "pack"), 0o700); err != nil {
		return err
	}
	folders, err := fs.ReadDir(f.root.FS(), objects)
	if err != nil {
		return err
	}
	for _, folder := range folders {
		name, want := folder.Name(), looseObject
		switch {
		case !folder.IsDir():
			continue
		case name == "pack":
			want = packFile
		case !looseFolder.MatchString(name):
			continue
		}
		files, err := fs.ReadDir(f.root.FS(), path.Join(objects, name))
		if err == nil {
			err = os.MkdirAll(filepath.Join(at, name), 0o700)
		}
		if err != nil {
			return err
		}
		for _, file := range files {
			if !file.Type().IsRegular() || !want.MatchString(file.Name()) {
				continue
			}
			from := filepath.Join(f.path, filepath.FromSlash(objects), name, file.Name())
			if err := os.Symlink(from, filepath.Join(at, name, file.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// View is a repository of a folder as git may work on it: it has our configuration, and the objects
// of the repository and its family.
type View struct {
	path string
	Refs map[string]string // see [Folder.References]
}

// View makes a view of a repository, in which the objects of others can be found too.
func (f *Folder) View(r Repo, others ...Repo) (v *View, err error) {
	v = new(View)
	if v.Refs, err = f.References(r); err != nil {
		return nil, err
	}
	var alternates []string
	for _, of := range append([]Repo{r}, others...) {
		for _, objects := range []string{path.Join(of.dir, "objects"), of.family} {
			if objects == "" {
				continue
			}
			at, err := f.shadow(objects)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(alternates, at) {
				alternates = append(alternates, at)
			}
		}
	}
	if v.path, err = os.MkdirTemp(f.temp, "view-"); err != nil {
		return nil, err
	}
	config := "[core]\n\tbare = true\n\trepositoryformatversion = 0\n"
	if v.isSHA256() {
		config = "[core]\n\tbare = true\n\trepositoryformatversion = 1\n[extensions]\n\tobjectformat = sha256\n"
	}
	for _, folder := range []string{"refs", "objects/info"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(v.path, folder), 0o700))
	}
	for name, text := range map[string]string{
		"HEAD": "ref: " + branches + "main\n", "config": config,
		"objects/info/alternates": strings.Join(alternates, "\n") + "\n",
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(v.path, name), []byte(text), 0o600))
	}
	if err != nil {
		v.Close()
		return nil, fmt.Errorf("make a view of the repository: %w", err)
	}
	return v, nil
}

// isSHA256 reports whether the ids of the repository have 64 hex digits.
func (v *View) isSHA256() bool {
	for _, id := range v.Refs {
		return len(id) == 64
	}
	return false
}

// Close removes the view.
func (v *View) Close() { os.RemoveAll(v.path) }

// BranchesAndTags are the branches and tags among the references.
func (v *View) BranchesAndTags() map[string]string { return v.below(branches, tags) }

// Pulls are the commits of pull requests, by the ids of their events.
func (v *View) Pulls() map[string]string {
	byID := map[string]string{}
	for name, commit := range v.below(pulls) {
		byID[strings.TrimPrefix(name, pulls)] = commit
	}
	return byID
}

func (v *View) below(prefixes ...string) map[string]string {
	found := maps.Clone(v.Refs)
	maps.DeleteFunc(found, func(name, _ string) bool {
		return !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
	return found
}

// Lacks returns those of the objects that are not there.
func (v *View) Lacks(ctx context.Context, ids []string) (lacking []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	out, err := runWith(ctx, v.path, strings.Join(ids, "\n")+"\n", "cat-file", "--batch-check=%(objectname)")
	for line := range strings.Lines(out) {
		if id, lacks := strings.CutSuffix(strings.TrimSpace(line), " missing"); lacks {
			lacking = append(lacking, id)
		}
	}
	return lacking, err
}

// Missing says what is not there of what the references need: at most a few ids, or what git says.
// Empty: everything is there.
func (v *View) Missing(ctx context.Context, refs map[string]string) (missing []string, err error) {
	const most = 5
	ids := slices.Compact(slices.Sorted(maps.Values(refs)))
	if missing, err = v.Lacks(ctx, ids); err != nil || len(missing) > 0 || len(ids) == 0 {
		return missing[:min(len(missing), most)], err
	}
	out, err := runWith(ctx, v.path, strings.Join(ids, "\n")+"\n", "rev-list", "--objects", "--missing=print", "--quiet",
		"--stdin")
	for line := range strings.Lines(out) {
		if id, is := strings.CutPrefix(strings.TrimSpace(line), "?"); is && len(missing) < most {
			missing = append(missing, id)
		}
	}
	if err != nil && ctx.Err() == nil { // a commit in the middle is not there
		missing, err = append(missing, err.Error()), nil
	}
	return missing, err
}

// push makes the references below some prefixes at a URL exactly these with prune, or else adds
// them. It returns how many there are; without any, nothing is pushed.
func (v *View) push(ctx context.Context, url string, refs map[string]string, prune bool, prefixes ...string) (
	int, error) {
	if len(refs) == 0 {
		return 0, nil
	}
	var packed strings.Builder
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		packed.WriteString(refs[name] + " " + name + "\n")
	}
	if err := os.WriteFile(filepath.Join(v.path, "packed-refs"), []byte(packed.String()), 0o600); err != nil {
		return 0, err
	}
	args := []string{"push", "--quiet", "--force", "--atomic"}
	if prune {
		args = append(args, "--prune")
	}
	args = append(args, "--", url)
	for _, prefix := range prefixes {
		args = append(args, prefix+"*:"+prefix+"*")
	}
	_, err := run(ctx, v.path, args...)
	return len(refs), err
}

// Push pushes the branches and tags to a URL, which has these and no others afterwards.
func (v *View) Push(ctx context.Context, url string) (count int, err error) {
	return v.push(ctx, url, v.BranchesAndTags(), true, branches, tags)
}

// PushPulls pushes commits of pull requests to a URL, by the ids of their events.
func (v *View) PushPulls(ctx context.Context, url string, byID map[string]string) (count int, err error) {
	refs := map[string]string{}
	for id, commit := range byID {
		refs[pulls+id] = commit
	}
	return v.push(ctx, url, refs, false, pulls)
}
