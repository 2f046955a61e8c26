package gittree

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

// The names in a folder of a GRASP server.
const (
	contributors = "prs"             // below it are the repositories of contributors (GRASP-06)
	families     = ".grasp/families" // below it, by hash, objects that the owners of an identifier share
)

// Repo is a bare repository in a folder, or at a server.
type Repo struct {
	At   string // absolute path or URL
	Name string // where it is at a server: <npub>/<identifier>.git, percent-encoded, below prs/ if PRs

	PubKey, Identifier string
	PRs                bool // of a contributor (GRASP-06)

	dir    string // in the folder, with slashes
	family string // the folder of objects in the folder that it shares with others; empty: none
}

// On returns the repository of that name at a GRASP server. server is its http(s) URL.
func (r Repo) On(server string) Repo {
	r.At = strings.TrimRight(server, "/") + "/" + r.Name
	return r
}

// Shares reports whether the repository's objects are among those of a family.
func (r Repo) Shares() bool { return r.family != "" }

// Passed is something in a folder that is passed over.
type Passed struct {
	Path string `json:"path"` // in the folder
	Why  string `json:"why"`
}

// Folder is a folder of bare repositories as GRASP servers keep them:
//
//	<npub>/<identifier>.git           of an owner
//	prs/<npub or hex>/<identifier>.git of a contributor
//	.grasp/families/<sha1|sha256>/<identifier>.git objects that all of one identifier share
//
// It is only read, and those who can write to it are not trusted: no symbolic link is followed, and no
// configuration, hook or path that a repository names is looked at.
type Folder struct {
	path string
	root *os.Root
	temp string // views of repositories

	objects shadows
}

// OpenFolder opens a folder of repositories.
func OpenFolder(dir string) (f *Folder, err error) {
	f = new(Folder)
	if f.path, err = filepath.Abs(dir); err == nil {
		f.root, err = os.OpenRoot(f.path)
	}
	if err != nil {
		return nil, fmt.Errorf("list repositories: %w", err)
	}
	if f.temp, err = os.MkdirTemp("", "tendril-git-"); err != nil {
		return nil, errors.Join(err, f.root.Close())
	}
	f.objects.made = map[string]string{}
	return f, nil
}

// Close removes what was made to read the folder.
func (f *Folder) Close() error { return errors.Join(os.RemoveAll(f.temp), f.root.Close()) }

// Find lists the repositories of a folder.
func Find(dir string) ([]Repo, error) {
	f, err := OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, _, err := f.List()
	return slices.DeleteFunc(all, func(r Repo) bool { return r.PRs }), err
}

// List lists the repositories, and what has none of their names or is not what it should be.
func (f *Folder) List() (all []Repo, passed []Passed, err error) {
	pass := func(at, why string) { passed = append(passed, Passed{at, why}) }
	people, err := f.people(".", pass)
	if err == nil && f.isDir(contributors) {
		var more []person
		more, err = f.people(contributors, pass)
		people = append(people, more...)
	}
	for _, p := range people {
		repos, failed := f.repositories(p, pass)
		if err = cmp.Or(err, failed); err != nil {
			break
		}
		all = append(all, repos...)
	}
	if err != nil {
		err = fmt.Errorf("list repositories: %w", err)
	}
	return all, passed, err
}

// person is a folder that is named for a public key.
type person struct {
	dir, key string
	prs      bool // below that of contributors
}

// people are the folders below dir that are named for a public key.
func (f *Folder) people(dir string, pass func(at, why string)) (all []person, err error) {
	entries, err := fs.ReadDir(f.root.FS(), dir)
	for _, entry := range entries {
		prs := dir == contributors
		at, key := path.Join(dir, entry.Name()), keyOf(entry.Name(), prs)
		switch {
		case entry.Type()&fs.ModeSymlink != 0:
			pass(at, "a symbolic link is not followed")
		case key != "" && entry.IsDir():
			all = append(all, person{at, key, prs})
		case at == contributors || at == path.Dir(families):
		default:
			pass(at, "it is named for no public key")
		}
	}
	return all, err
}

// keyOf reads the name of a person's folder: an npub, or where hex is allowed the key itself.
func keyOf(name string, hex bool) string {
	if hex && nostr.IsHex64(name) {
		return name
	}
	if prefix, key, err := nip19.Decode(name); err == nil && prefix == "npub" {
		return key.(string)
	}
	return ""
}

// repositories are those in the folder of a person.
func (f *Folder) repositories(p person, pass func(at, why string)) (all []Repo, err error) {
	entries, err := fs.ReadDir(f.root.FS(), p.dir)
	for _, entry := range entries {
		at := path.Join(p.dir, entry.Name())
		name, bare := strings.CutSuffix(entry.Name(), ".git")
		identifier := identifierOf(name)
		switch illegal := nostr.CheckIdentifier(identifier); {
		case entry.Type()&fs.ModeSymlink != 0:
			pass(at, "a symbolic link is not followed")
		case !bare || !entry.IsDir():
			pass(at, "it is no folder <identifier>.git")
		case illegal != nil:
			pass(at, illegal.Error())
		case !f.isDir(path.Join(at, "objects")):
			pass(at, "it has no folder of objects")
		default:
			r := Repo{PubKey: p.key, Identifier: identifier, PRs: p.prs, dir: at}
			r.At, r.Name = filepath.Join(f.path, filepath.FromSlash(at)), nostr.RepositoryURLPath(nostr.Npub(p.key), identifier)
			if p.prs {
				r.Name = nostr.PRsURLPath(nostr.Npub(p.key), identifier)
			}
			r.Name = strings.TrimPrefix(r.Name, "/")
			var wrong error
			if r.family, wrong = f.familyOf(r); wrong != nil {
				pass(path.Join(at, "objects/info/alternates"), wrong.Error())
			}
			all = append(all, r)
		}
	}
	return all, err
}

// isDir reports whether there is a folder that is no symbolic link. Those above it were looked at.
func (f *Folder) isDir(at string) bool {
	info, err := f.root.Lstat(at)
	return err == nil && info.IsDir()
}

// maxAlternates bounds the file of a repository that says where more objects are, in bytes.
const maxAlternates = 64 << 10

// familyOf returns the folder of objects that a repository shares. The file that names it has the
// absolute path on the machine where it was written: only the end of the path counts, which must be
// that of this identifier, below the folder that is being read.
func (f *Folder) familyOf(r Repo) (family string, err error) {
	text, err := f.read(path.Join(r.dir, "objects/info/alternates"), maxAlternates)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		_, at, found := strings.Cut(path.Clean("/"+filepath.ToSlash(line)), "/"+families+"/")
		parts := strings.Split(at, "/") // <hash>/<identifier>.git/objects
		if !found || len(parts) != 3 || parts[0] != "sha1" && parts[0] != "sha256" || parts[2] != "objects" ||
			identifierOf(strings.TrimSuffix(parts[1], ".git")) != r.Identifier {
			err = fmt.Errorf("it names objects at %.200q, which are not those of this identifier in this folder: "+
				"they are not read", line)
			continue
		}
		family = path.Join(families, at)
		if at := f.linkOn(family); at != "" || !f.isDir(family) {
			return "", fmt.Errorf("%s is missing, or no folder: the objects there are not read", cmp.Or(at, family))
		}
	}
	return family, err
}

// linkOn returns the first part of a path in the folder that is a symbolic link; empty: none is.
func (f *Folder) linkOn(at string) string {
	for end := range at {
		if at[end] != '/' {
			continue
		}
		if info, err := f.root.Lstat(at[:end]); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return at[:end]
		}
	}
	return ""
}

// identifierOf reads an identifier that servers write percent-encoded or as it is.
func identifierOf(name string) string {
	if identifier, err := nostr.DecodeIdentifier(name); err == nil {
		return identifier
	}
	if identifier, err := url.PathUnescape(name); err == nil {
		return identifier
	}
	return name
}
