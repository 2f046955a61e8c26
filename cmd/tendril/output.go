package main

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
)

// output is where events are written to: standard output, or a file that appears when it is whole.
type output struct {
	*bufio.Writer
	file *os.File
	name string // what the file is called in the end; empty: it is so already
}

func openOutput(name string) (*output, error) {
	o := &output{}
	info, err := os.Stat(name)
	switch {
	case name == "-":
		o.file, err = os.Stdout, nil
	case err == nil && !info.Mode().IsRegular():
		o.file, err = os.OpenFile(name, os.O_WRONLY, 0)
	default:
		o.name = name
		o.file, err = os.CreateTemp(filepath.Dir(name), ".tendril-export-")
	}
	o.Writer = bufio.NewWriterSize(o.file, 1<<20)
	return o, err
}

// finish brings everything to the disk and gives the file its name.
func (o *output) finish() error {
	err := o.Flush()
	if err == nil && o.name != "" {
		err = errors.Join(o.file.Chmod(0o644), o.file.Sync(), os.Rename(o.file.Name(), o.name))
	}
	return err
}

// discard removes what was not finished.
func (o *output) discard() {
	o.file.Close()
	if o.name != "" {
		os.Remove(o.file.Name())
	}
}
