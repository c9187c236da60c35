import java.net.URI;
import org.apache.hadoop.fs.RawLocalFileSystem;

/** Files of managed tables, which only the server can reach: the local disk under a scheme that nobody else knows. */
public final class ManagedStorage extends RawLocalFileSystem {
  @Override
  public URI getUri() {
    return URI.create("managed:///");
  }

  @Override
  public String getScheme() {
    return "managed";
  }
}
