package windrow;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Writes Delta's log to S3 so that no entry replaces another one: S3A (Hadoop 3.4.2 and later) asks S3 to create an
 * entry only if there is none (If-None-Match). delta-rs asks the same, so of two commits of one version one fails.
 */
public class ConditionalLogStore extends HadoopFileSystemLogStore {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
  private static final String REFUSED = "Status Code: 412";

  public ConditionalLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    FileSystem files = path.getFileSystem(configuration);
    if (overwrite) {
      try (FSDataOutputStream entry = files.create(path, true)) {
        writeLines(entry, actions);
      }
      return;
    }
    // A file system that does not know the option refuses it here.
    FSDataOutputStream entry =
        (FSDataOutputStream) files.createFile(path).overwrite(true).must(CONDITIONAL, true).build();
    try {
      writeLines(entry, actions);
      entry.close();
    } catch (IOException error) {
      if (String.valueOf(error).contains(REFUSED)) {
        throw new FileAlreadyExistsException(path.toString());
      }
      throw error;
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
    return false;
  }

  private static void writeLines(FSDataOutputStream entry, Iterator<String> actions) throws IOException {
    while (actions.hasNext()) {
      entry.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
  }
}
